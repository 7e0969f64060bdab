"""Neighbours: results per second of this suite, of ONNX's node tests and of array-api-tests.

All are run by pytest in one process each, in turn, ``--runs`` times each, and every one judges an installed library.  A
result is what pytest counts: one case of this suite, one model with its stored output in ONNX's node tests, one
function on many random examples in array-api-tests.

array-api-tests is no package: ``--array-api-tests FOLDER`` names a checkout with its submodule and with its
requirements installed; without it that suite is left out.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from studies.common import ROOT, Measured, Study, Unfit, markdown, resources_used, sentence

#: ONNX's tests of the operator Attention, on ONNX Runtime.  Tests of LinearAttention are of another operator.
NODE_TESTS = """
import onnx.backend.test
import onnxruntime.backend

tests = onnx.backend.test.BackendTest(onnxruntime.backend, __name__)
tests.include("^test_attention")
globals().update({"OnnxBackendNodeModelTest": tests.test_cases["OnnxBackendNodeModelTest"]})
"""

LIBRARIES = ("numpy", "onnx", "onnxruntime", "pytest")

#: Exit codes of pytest if everything passed, and if a test failed.
ENDED = (0, 1)


@dataclass(frozen=True)
class Neighbour:
    """A suite: what it judges, the words after ``pytest``, its folder and its variables."""

    name: str
    judges: str
    words: tuple[str, ...]
    folder: Path
    variables: Mapping[str, str]


def neighbours(work: Path, array_api_tests: Path | None) -> list[Neighbour]:
    """The suites that can be run here, this one first."""
    (work / "test_nodes.py").write_text(NODE_TESTS, encoding="utf-8")
    own = [
        Neighbour("this suite", name, ("conformance", "--impl", name, "-p", "no:cacheprovider"), ROOT, {})
        for name in ("numpy-eager", "onnx-attention23")
    ]
    nodes = Neighbour("ONNX node tests of Attention", "ONNX Runtime", ("test_nodes.py", "-W", "ignore"), work, {})
    if array_api_tests is None:
        return [*own, nodes]
    if not (array_api_tests / "array_api_tests/test_linalg.py").is_file():
        raise Unfit(f"--array-api-tests {array_api_tests}: not a checkout of array-api-tests")
    words = ("array_api_tests/test_linalg.py", "-p", "no:cacheprovider")
    return [
        *own,
        nodes,
        Neighbour("array-api-tests of linalg", "NumPy", words, array_api_tests, {"ARRAY_API_TESTS_MODULE": "numpy"}),
    ]


def counted(report: Path) -> dict[str, int]:
    """Numbers of tests in a JUnit report that passed, failed, were skipped, and were expected to fail."""
    kinds = {"failure": "failed", "error": "failed", "skipped": "skipped"}
    found: Counter[str] = Counter()
    for test in ET.parse(report).getroot().iter("testcase"):  # noqa: S314  (pytest's own, just written)
        outcomes = [kinds[child.tag] for child in test if child.tag in kinds]
        expected = any("xfail" in child.get("type", "") for child in test)
        found["expected failures" if expected else (outcomes or ["passed"])[0]] += 1
    return dict(found)


def measure(runs: int, array_api_tests: Path | None) -> dict[str, Any]:
    """Every suite ``runs`` times, in turn."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        suites = neighbours(work, array_api_tests.resolve() if array_api_tests else None)
        found: list[dict[str, Any]] = [{"suite": one.name, "judges": one.judges, "runs": []} for one in suites]
        for _ in range(runs):
            for one, kept in zip(suites, found, strict=True):
                report = work / "report.xml"
                words = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", *one.words]
                before = resources_used([*words, "--collect-only"], ENDED, one.folder, one.variables)
                taken = resources_used([*words, f"--junitxml={report}"], ENDED, one.folder, one.variables)
                kept["runs"].append(taken | {"collect_cpu_seconds": before["cpu_seconds"], "results": counted(report)})
    return {
        "suites": found,
        "array_api_tests": commit(array_api_tests) if array_api_tests else "",
        "versions": {library: metadata.version(library) for library in LIBRARIES},
    }


def commit(folder: Path) -> str:
    """The first ten digits of the commit of a checkout."""
    words = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603
    if not re.fullmatch("[0-9a-f]{40}", told):
        raise Unfit(f"{folder}: no commit")
    return told[:10]


def executed(results: Mapping[str, int]) -> int:
    """Number of results that called something: all except the skipped ones."""
    return sum(count for outcome, count in results.items() if outcome != "skipped")


def table(found: Measured) -> str:
    """Markdown: a row for each suite, medians of its runs."""
    rows = []
    for one in found["suites"]:
        results = one["runs"][0]["results"]
        count = executed(results)
        names = ("seconds", "cpu_seconds", "collect_cpu_seconds")
        seconds, cpu, before = (statistics.median(run[name] for run in one["runs"]) for name in names)
        rows.append(
            [
                one["suite"],
                f"`{one['judges']}`" if "-" in one["judges"] else one["judges"],
                f"{count:,}",
                results.get("failed", 0) + results.get("expected failures", 0),
                f"{seconds:.1f}",
                f"{cpu:.1f}",
                f"{before:.1f}",
                f"{count / cpu:.1f}",
            ]
        )
    heads = [
        "suite",
        "judges",
        "results",
        "of them failing",
        "seconds",
        "of the processor",
        "until they are collected",
        "results per second of the processor",
    ]
    at = f"array-api-tests at {found['array_api_tests']}" if found["array_api_tests"] else ""
    runs = len(found["suites"][0]["runs"])
    versions = ", ".join(f"{name} {version}" for name, version in found["machine"]["versions"].items())
    lines = markdown(heads, rows, (0, 1))
    first: Sequence[str] = [
        f"Medians of {runs} runs, starting Python included, caches warm",
        versions,
        *filter(None, [at]),
    ]
    return f"{lines}\n\n{sentence(found, *first)}"


STUDY = Study(
    "neighbours",
    "results per second of this suite, of ONNX's node tests and of array-api-tests",
    measure,
    {"conformance/README.md": table},
    {
        "--runs": {"type": int, "default": 5, "help": "of each suite (default: %(default)s)"},
        "--array-api-tests": {"type": Path, "metavar": "FOLDER", "help": "a checkout of data-apis/array-api-tests"},
    },
)
