"""One page as a file: a template with its style, scripts, compressed data, and a matching content security policy."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import importlib.metadata
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from attention_conformance.impls import cache
from attention_conformance.reports.html.views import EXACT

TEMPLATES = Path(__file__).with_name("templates")

#: Characters of messages in a page.  They compress about tenfold (measured: 0.6 MB of the published messages become
#: 50 kB), so that all together stay under 1.5 MB even if no two of them have the same numbers.
MESSAGES = 8_000_000

#: Characters of one message: the longest published one has 3,300.
MESSAGE = 8_000

#: Level of gzip.
COMPRESSION = 9

#: Replacements of the digits of base85 that HTML would take for markup; data.js has all digits.
PLAIN = str.maketrans("<>&", ",:.")

#: Text at the end of a longer message, and instead of one that is left out.
CUT = "\n(Truncated here; the result file has the rest.)"

LEFT_OUT = "(Left out to limit the size of this page; the result file has it.)"

#: Lines of a message that the details show anyway: the clause and its sentence, and the command.
_SAID = re.compile(r"^(?:[A-Z]+-\d+ · |Rerun:).*\n?", re.MULTILINE)

_CODE = "import sys, vl_convert; sys.stdout.buffer.write(vl_convert.javascript_bundle().encode('utf-8'))"


def rendered(template: str, scripts: Sequence[str], bundle: Bundle | None, shown: Mapping[str, Any]) -> str:
    """A template of the folder, filled in; only its scripts, in this order, and those of the bundle may run.

    A page without plots has no bundle.
    """
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    texts = [Markup((TEMPLATES / name).read_text(encoding="utf-8")) for name in scripts]  # noqa: S704 (our own)
    style = Markup((TEMPLATES / "style.css").read_text(encoding="utf-8"))  # noqa: S704 (our own)
    vega = [] if bundle is None else [bundle.text()]
    hashes = Markup(" ".join(f"'sha256-{_hash(text)}'" for text in (*texts, *vega)))  # noqa: S704 (base64)
    fixed = {"style": style, "scripts": texts, "vega": "".join(map(compressed, vega)), "hashes": hashes}
    return environment.get_template(template).render(**shown, **fixed)


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")


def packed(frames: Mapping[str, pd.DataFrame], **more: Any) -> str:
    """Frames and other plain data as base85 of gzip of JSON.  The same data gives the same text."""
    data = {"frames": {name: _columns(frame) for name, frame in frames.items()}, **more}
    return compressed(json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False))


def compressed(text: str) -> str:
    """A text as base85 of gzip, the same for the same text: a sixteenth shorter than base64, and without markup."""
    packed = gzip.compress(text.encode("utf-8"), compresslevel=COMPRESSION, mtime=0)
    return base64.b85encode(packed).decode("ascii").translate(PLAIN)


def limited(frame: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Results with at most MESSAGES characters of messages, and the number of messages that were left out.

    Each implementation keeps the first message of each clause and kind of failure before any keeps a second one.
    """
    text = frame["message"].fillna("").str.replace(_SAID, "", regex=True).str.rstrip()
    text = text.where(text.str.len() <= MESSAGE, text.str.slice(0, MESSAGE) + CUT)
    told = frame.assign(there=text.ne("")).groupby(["implementation", "broken", "failure"], dropna=False)["there"]
    order = told.cumsum().sort_values(kind="stable").index
    kept = text.str.len().reindex(order).cumsum().reindex(frame.index) <= MESSAGES
    left = int((~kept & text.ne("")).sum())
    return frame.assign(message=text.where(kept | text.eq(""), LEFT_OUT)), left


def _columns(frame: pd.DataFrame) -> dict[str, Any]:
    return {"length": len(frame), "columns": {str(name): _column(frame[name]) for name in frame.columns}}


def _column(column: pd.Series) -> Any:
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
        return [_number(value) for value in column.tolist()]
    known = column.astype(object)
    codes, texts = pd.factorize(known.where(known.notna(), "").map(str))
    return {"codes": codes.tolist(), "texts": list(texts)}


def _number(value: float) -> float | int | str | None:
    """JSON has no NaN and no infinity: a missing number is null, an infinite one a text."""
    if isinstance(value, int) or math.isinf(value):
        return value if isinstance(value, int) else str(value)
    if math.isnan(value):
        return None
    return int(value) if value.is_integer() and abs(value) < 2**53 else float(f"{value:.{EXACT}g}")


class Bundle:
    """Bundle that a process makes; ``text`` waits for it.  A context manager, which ends the process."""

    def __enter__(self) -> Bundle:
        self._place = _place()
        self._process: subprocess.Popen[bytes] | None = None
        if self._place is None or not self._place.is_file():
            command = [sys.executable, "-c", _CODE]
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE)  # noqa: S603 (our own code)
        return self

    def text(self) -> str:
        """The script.  Raises RuntimeError if vl_convert returned none."""
        script = self._packed_script(self._process) if self._process else Path(str(self._place)).read_bytes()
        return script.decode("utf-8")

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.communicate()

    def _packed_script(self, process: subprocess.Popen[bytes]) -> bytes:
        script = process.communicate()[0]
        if process.returncode or not script:
            raise RuntimeError("vl_convert did not give the JavaScript of the plots")
        if self._place is not None:
            with contextlib.suppress(OSError):  # an unwritable folder is no error
                self._place.parent.mkdir(parents=True, exist_ok=True)
                descriptor, path = tempfile.mkstemp(dir=self._place.parent)
                with os.fdopen(descriptor, "wb") as file:
                    file.write(script)
                os.replace(path, self._place)  # in one step, so that no reader sees half of it
        return script


def _place() -> Path | None:
    """Path of the bundle of this version, None if it is not kept."""
    kept = cache.folder("html")
    return kept / f"vega-{importlib.metadata.version('vl-convert-python')}.js" if kept else None
