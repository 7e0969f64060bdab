"""The JavaScript that draws the plots: Vega, Vega-Lite and vega-embed, as vl_convert brings them.

Bundling takes about three seconds and holds the interpreter's lock: another process does it meanwhile, and the result
is kept for the next page, in ``attention-conformance/html`` under the user's cache directory.  The environment variable
ATTENTION_CONFORMANCE_CACHE names another place, and "" turns it off.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import subprocess
import sys
import tempfile
from pathlib import Path

_CODE = "import sys, vl_convert; sys.stdout.buffer.write(vl_convert.javascript_bundle().encode('utf-8'))"


class Bundle:
    """A bundle that is being made; ``text`` waits for it.  A context manager, which ends the process."""

    def __enter__(self) -> Bundle:
        self._place = _place()
        self._process: subprocess.Popen[bytes] | None = None
        if self._place is None or not self._place.is_file():
            command = [sys.executable, "-c", _CODE]
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE)  # noqa: S603 (our own code)
        return self

    def text(self) -> str:
        """The script.  Raises RuntimeError if vl_convert gave none."""
        script = self._made(self._process) if self._process else Path(str(self._place)).read_bytes()
        return script.decode("utf-8")

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.communicate()

    def _made(self, process: subprocess.Popen[bytes]) -> bytes:
        script = process.communicate()[0]
        if process.returncode or not script:
            raise RuntimeError("vl_convert did not give the JavaScript of the plots")
        if self._place is not None:
            with contextlib.suppress(OSError):  # a folder that cannot be written is no error
                self._place.parent.mkdir(parents=True, exist_ok=True)
                descriptor, path = tempfile.mkstemp(dir=self._place.parent)
                with os.fdopen(descriptor, "wb") as file:
                    file.write(script)
                os.replace(path, self._place)  # in one step, so that no reader sees half of it
        return script


def _place() -> Path | None:
    """Where the bundle of this version is kept, None if it is not."""
    named = os.environ.get("ATTENTION_CONFORMANCE_CACHE")
    if named == "":
        return None
    base = named or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    version = importlib.metadata.version("vl-convert-python")
    return Path(base) / "attention-conformance" / "html" / f"vega-{version}.js"
