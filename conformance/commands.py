"""Commands about the cases, the spec and the evidence, each a function that returns the text to print."""

from __future__ import annotations

import argparse
from pathlib import Path

from attention_conformance.conformance.cases import QUICK, every_case
from attention_conformance.conformance.cases.envelopes import KINDS
from attention_conformance.conformance.run import sharding
from attention_conformance.conformance.run.parallel import default_parallel
from attention_conformance.conformance.spec.clauses import clauses
from attention_conformance.impls.checkout import writable


def list_cases() -> str:
    """Every case under its first clause: name, dtypes, and why it exists."""
    lines = []
    for clause in clauses().values():
        cases = [c for c in every_case().values() if c.clauses[0] == clause.id]
        if cases:
            lines += ["", f"{clause.id} · {clause.title} ({clause.level.value})"]
        for case in cases:
            also = f" [also {', '.join(case.clauses[1:])}]" if case.clauses[1:] else ""
            stays = f" Stays: {case.stays}." if case.stays else ""
            lines.append(f"  {case.name} ({', '.join(case.dtypes)}): {case.why}{stays}{also}")
    return "\n".join(lines[1:])


def list_clauses() -> str:
    """Every clause with its level and sentence."""
    return "\n".join(f"{c.id} · {c.title} ({c.level.value}): {c.sentence}" for c in clauses().values())


def write_kill_matrix(output: Path, per_envelope: list[str] | None, choose_quick: bool = False) -> str:
    """Judge every fault on every case, or inside envelopes (all where none is named), and write the kill matrix."""
    from attention_conformance.conformance.faults import envelopes, kill_matrix

    for written in (output, *([QUICK] if choose_quick else [])):
        writable(written)
    if per_envelope is not None:
        return envelopes.write(output, per_envelope)
    return kill_matrix.write(output, choose_quick)


def write_evidence(problems: int | None, parallel: int, output: Path, only: list[str], cases: bool) -> str:
    """Measure, and write the evidence and its page next to it; takes minutes."""
    from attention_conformance.conformance.evidence import page, record

    writable(output)
    kept = record.read() if cases or only else None
    evidence = record.remeasure_cases(kept) if cases and kept else record.collect(problems, parallel, only, kept)
    record.write(evidence, output)
    return f"{output}\n{page.write(output)}"


def merge_parts(parts: list[Path], output: Path) -> str:
    """Join the result files of all parts of a run."""
    return f"{sharding.merge(parts, output)} results: {output}"


def kill_matrix_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``kill-matrix``."""
    parser.add_argument(
        "--envelopes",
        dest="per_envelope",
        nargs="*",
        choices=list(KINDS),
        metavar="NAME",
        help="also inside the envelope of each kind of kernel, or of the named kinds, and on kernel paths; the "
        "file keeps its other envelopes (minutes each)",
    )
    parser.add_argument(
        "--choose-quick",
        action="store_true",
        help="also choose again the cases of 'check --quick', and write their names into the checkout",
    )
    parser.add_argument(
        "-o", dest="output", type=Path, default=Path("faults.json"), metavar="FILE", help="default: %(default)s"
    )


def evidence_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``evidence``."""
    from attention_conformance.conformance.evidence import record
    from attention_conformance.conformance.evidence.series import SERIES

    parser.add_argument("--problems", type=int, metavar="N", help="problems of each series; default: set by the series")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--only",
        action="append",
        default=[],
        choices=SERIES,
        help="measure one series, and keep the others; repeatable",
    )
    what.add_argument(
        "--cases", action="store_true", help="measure only what is about the suite's cases, after a change of cases"
    )
    parser.add_argument(
        "--parallel", type=int, default=default_parallel(), metavar="N", help="processes; default: %(default)s"
    )
    parser.add_argument(
        "-o",
        dest="output",
        type=Path,
        default=record.EVIDENCE,
        metavar="FILE",
        help="the evidence, as JSON; BOUNDS.md is written next to it",
    )


def merge_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``merge``."""
    parser.add_argument("output", type=Path, metavar="OUT", help="the result file to write")
    parser.add_argument("parts", type=Path, nargs="+", metavar="PART", help="the result file of each --shard I/N")
