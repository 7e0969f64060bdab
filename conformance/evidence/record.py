"""evidence.json: what the evidence holds, how it is collected, written and read.

Numbers only; the page is made from them (page.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import conformance
from conformance.deviations import read as read_ledger
from conformance.evidence import sensitivity
from conformance.evidence.measure import EVERY, IMPLEMENTATIONS, alarms, measure, rows
from conformance.evidence.problems import SEED, dtype_of, random_problem
from conformance.evidence.verdicts import Kind, Verdict
from conformance.problem import Problem
from conformance.results import fingerprint

#: Raised when the meaning of a field changes.
FORMAT = 1

EVIDENCE = Path(conformance.__file__).with_name("evidence.json")

#: What the evidence is asked for.
PROBLEMS = 20_000

#: float64 inputs that are computed in float32, beside the suite's cases.
IN_FLOAT32 = 1_000

#: What a problem may have, and whether it has it.
HAS: dict[str, Callable[[Problem], bool]] = {
    "mask": lambda p: p.mask is not None,
    "bias": lambda p: p.bias is not None,
    "a mask or bias that is repeated along an axis": lambda p: any(
        x is not None and (1 in x.axes or len(x.axes) < 4) for x in (p.mask, p.bias)
    ),
    "is_causal": lambda p: p.is_causal,
    "causal_offset": lambda p: p.causal_offset is not None,
    "causal_offset, negative": lambda p: isinstance(p.causal_offset, int) and p.causal_offset < 0,
    "causal_offset, one for each batch": lambda p: isinstance(p.causal_offset, tuple),
    "window": lambda p: p.window is not None,
    "kv_lengths": lambda p: p.kv_lengths is not None,
    "kv_lengths with a 0": lambda p: p.kv_lengths is not None and 0 in p.kv_lengths,
    "scale": lambda p: p.scale is not None,
    "scale 0": lambda p: p.scale == 0,
    "scale, negative": lambda p: p.scale is not None and p.scale < 0,
    "softcap": lambda p: p.softcap is not None,
    "return_weights": lambda p: p.return_weights,
    "return_lse": lambda p: p.return_lse,
    "grouped heads": lambda p: p.shape.hq > p.shape.hkv,
    "an offset of all scores": lambda p: p.offset != 0,
    "an outlier key": lambda p: p.outlier != 1,
}

#: Sizes of a problem.
SIZES: dict[str, Callable[[Problem], float]] = {
    "D": lambda p: p.shape.d,
    "Dv": lambda p: p.shape.dv,
    "Sk": lambda p: p.shape.sk,
    "Sq": lambda p: p.shape.sq,
    "standard deviation of q and k": lambda p: p.spread,
    "standard deviation of v": lambda p: p.values,
    "offset of all scores": lambda p: p.offset,
    "length of one key over the others'": lambda p: p.outlier,
}


def collect(problems: int, parallel: int) -> dict[str, Any]:
    """Measure everything; takes minutes.  ``problems`` random problems, ``parallel`` blocks of them at a time."""
    judged = measure(problems, parallel, IMPLEMENTATIONS)
    machine = fingerprint()
    return {
        "format": FORMAT,
        "seed": SEED,
        "problems": problems,
        "machine": {name: machine[name] for name in ("machine", "system", "python")},
        "versions": dict(sorted(judged.versions.items())),
        "every": dict(EVERY),
        "drawn": drawn(problems),
        "alarms": alarms(judged.verdicts),
        "rows": sorted(rows(judged.verdicts), key=_order),
        "deviations": deviations(judged.verdicts),
        "sensitivity": sensitivity.rows(),
        "float32": sensitivity.float32_counts(min(problems, IN_FLOAT32)),
    }


def drawn(problems: int) -> dict[str, Any]:
    """What the first problems are: how many have what, and the range of every size."""
    every = [random_problem(index) for index in range(problems)]
    dtypes = [dtype_of(index) for index in range(problems)]
    return {
        "dtypes": {name: dtypes.count(name) for name in sorted(set(dtypes))},
        "has": {name: sum(test(problem) for problem in every) for name, test in HAS.items()},
        "sizes": {name: [min(map(size, every)), max(map(size, every))] for name, size in SIZES.items()},
    }


def deviations(verdicts: Iterable[Verdict]) -> dict[str, dict[str, Any]]:
    """What is known of each record that excused a problem."""
    met = {name for each in verdicts if each.kind is Kind.KNOWN for name in each.why.split(", ")}
    return {
        each.id: {"clause": each.clause, "instead": each.instead} for each in read_ledger().deviations if each.id in met
    }


def write(evidence: dict[str, Any], path: Path) -> None:
    """Write a file that ``read`` reads."""
    path.write_text(json.dumps(evidence, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def read(path: Path = EVIDENCE) -> dict[str, Any]:
    """The evidence in a file.  Raises ValueError for another format."""
    evidence: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if evidence.get("format") != FORMAT:
        raise ValueError(f"{path} has format {evidence.get('format')}, expected {FORMAT}")
    return evidence


def _order(row: dict[str, Any]) -> tuple[bool, int, int]:
    names = [name.rpartition(":")[2] for name in IMPLEMENTATIONS]
    return row["variant"], names.index(row["implementation"]), sensitivity.DTYPES.index(row["dtype"])
