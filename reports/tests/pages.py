"""A small run for the tests of the HTML page: every number in it is known."""

from __future__ import annotations

import base64
import gzip
import re
from pathlib import Path
from typing import Any

from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.spec.clauses import clauses
from attention_conformance.reports.compare.compare import compare
from attention_conformance.reports.html.page import page
from attention_conformance.reports.input.read import read
from attention_conformance.reports.model.model import Model
from attention_conformance.reports.tests.files import bench_run, conformance_file, result, steady, timed

#: A name that must be shown, and never be run.
HOSTILE = "<script>alert(1)</script>"

CAUSAL = "prefill-b1h8d64s*-causal"

#: Seconds at S = 4096: times grow as S².
TIMES = {"quick": 0.050, "square": 0.100, HOSTILE: 0.200}


def wrong(implementation: str, case: str, clause: str, **fields: Any) -> Result:
    """A result that broke a clause, with a message."""
    message = f"{implementation}, case {case}: wrong by value\nScript:   scripts/{case}.py\nRerun:    pytest …"
    given = {
        "failure": Failure.VALUE,
        "broken": clause,
        "reason": "NaN in rows",
        "error_pattern": "NaN",
        "message": message,
    }
    return result(implementation, case, Outcome.FAILED, **given, **fields)


def results() -> list[Result]:
    """An implementation that is right about fully masked rows (quick), one that is not (square), and a hostile name."""
    rows: dict[str, Any] = {"clauses": ("SDPA-15",), "share": 0.25, "profile": "wide", "meets": ("wide",)}
    plain: dict[str, Any] = {
        "clauses": ("SDPA-1", "SDPA-9"),
        "share": 0.5,
        "profile": "wide",
        "meets": ("wide", "fused"),
    }
    return [
        result("quick", "plain", **plain),
        result("quick", "causal-more-keys", dtype="float16", **plain | {"share": 0.75}),
        result("quick", "empty-row", **rows),
        result("quick", "empty-all", **rows),
        result("square", "plain", **plain),
        wrong("square", "empty-row", "SDPA-15", clauses=("SDPA-15",)),
        wrong("square", "empty-all", "SDPA-15", clauses=("SDPA-15",)),
        result("square", "empty-row-last", **rows),
        result(HOSTILE, "plain", **plain),
        result(HOSTILE, "empty-row", Outcome.UNSUPPORTED, reason=f"{HOSTILE} has no mask", clauses=("SDPA-15",)),
    ]


def cells(slower: float = 1.0) -> list[dict[str, Any]]:
    """Three implementations at four lengths, one of which holds an array of scores."""
    found = []
    for name, seconds in TIMES.items():
        for length in (512, 1024, 2048, 4096):
            factor = slower if name == "square" else 1.0
            found.append(
                timed(
                    name,
                    length,
                    steady(seconds * (length / 4096) ** 2 * factor, seed=length),
                    family=CAUSAL,
                    workload=CAUSAL.replace("*", str(length)),
                    operator="sdpa",
                    memory_bytes=8 * 4 * length**2 if name == "square" else 2048 * length,
                    bound_by="compute",
                    share_of_limit=0.5,
                )
            )
    return found


def model(folder: Path, *, base: bool = False) -> Model:
    """The run as a model; with a base, ``square`` is 1.5 times as slow as it was."""
    files = [conformance_file(folder / "a.jsonl", *results()), bench_run(folder / "b.json", *cells(1.5 if base else 1))]
    records = read(files)
    before = read([files[0], bench_run(folder / "base.json", *cells())]) if base else None
    return Model(records, clauses(), compare(before, records) if before else None)


def written(folder: Path, *, base: bool = False) -> Path:
    """The page as a file."""
    path = folder / "report.html"
    path.write_text(page(model(folder, base=base)), encoding="utf-8")
    return path


def unpacked(text: str, name: str = "data") -> str:
    """The content of an element of the page, decompressed."""
    found = re.search(rf'id="{name}">([^<]*)<', text)
    assert found
    return plain(found[1])


def plain(packed: str) -> str:
    """The text that ``document.compressed`` packed."""
    return gzip.decompress(base64.b85decode(packed.translate(str.maketrans(",:.", "<>&")))).decode("utf-8")
