"""``attention-conformance``: the cases as a manual page and as test vectors, the ledger, the evidence for bounds."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.evidence import page, record
from attention_conformance.conformance.evidence.series import SERIES
from attention_conformance.conformance.faults import kill_matrix
from attention_conformance.conformance.ledger import commands as ledger
from attention_conformance.conformance.ledger.load import LedgerError
from attention_conformance.conformance.repro import command as script
from attention_conformance.conformance.results import ResultFileError
from attention_conformance.conformance.run import sharding
from attention_conformance.conformance.run.parallel import default_parallel
from attention_conformance.conformance.spec import examples
from attention_conformance.conformance.spec.clauses import clauses
from attention_conformance.conformance.vectors import commands as vectors
from attention_conformance.conformance.vectors.files import VectorError
from attention_conformance.impls.contract import ImplementationError

#: How a command ends whose input cannot be used.
UNUSABLE = 2

#: What says in one sentence why an input cannot be used.
UNFIT = (VectorError, LedgerError, ResultFileError, sharding.MergeError, script.ScriptError, ImplementationError)


def list_cases() -> str:
    """Every case under the clause that it breaks first: name, dtypes, and why it is there."""
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


def write_examples() -> str:
    """Write EXAMPLES.md anew from examples.toml."""
    return str(examples.write())


def write_faults(output: Path) -> str:
    """Judge every fault on every case and write the kill table; takes a minute."""
    return kill_matrix.write(output)


def write_bounds() -> str:
    """Write BOUNDS.md anew from page.md and evidence.json."""
    return str(page.write())


def write_evidence(problems: int | None, parallel: int, output: Path, only: list[str], cases: bool) -> str:
    """Measure, and write the evidence and its page beside it; takes minutes."""
    kept = record.read() if cases or only else None
    evidence = record.cases_anew(kept) if cases and kept else record.collect(problems, parallel, only, kept)
    record.write(evidence, output)
    return f"{output}\n{page.write(output)}"


def merge_parts(parts: list[Path], output: Path) -> str:
    """Join the result files of all parts of a run."""
    return f"{sharding.merge(parts, output)} results: {output}"


@dataclass(frozen=True)
class Command:
    """What a command runs, what it says of itself, and the options that it passes on by name.

    It gives what is printed, and an exit code if it decides anything.
    """

    run: Callable[..., str | tuple[str, int]]
    text: str
    options: Callable[[argparse.ArgumentParser], None] = lambda parser: None


def _faults_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", dest="output", type=Path, default=Path("faults.json"), metavar="FILE", help="default: %(default)s"
    )


def _evidence_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--problems", type=int, metavar="N", help="of each series; default: as many as it asks for")
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
        help="the evidence, as JSON; BOUNDS.md is written beside it",
    )


def _merge_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("output", type=Path, metavar="OUT", help="the result file to write")
    parser.add_argument("parts", type=Path, nargs="+", metavar="PART", help="the result file of each --shard I/N")


COMMANDS: dict[str, Command] = {
    "cases": Command(list_cases, "list every case, by clause"),
    "clauses": Command(list_clauses, "list every clause"),
    "examples": Command(write_examples, "regenerate EXAMPLES.md"),
    "faults": Command(write_faults, "judge every known fault and write the kill table (a minute)", _faults_options),
    "bounds": Command(write_bounds, "regenerate BOUNDS.md from evidence.json"),
    "evidence": Command(write_evidence, "measure the error bounds anew (minutes)", _evidence_options),
    "export": Command(
        vectors.run_export, "write the cases as test vectors for other languages", vectors.export_options
    ),
    "merge": Command(merge_parts, "join the result files of the parts of a run", _merge_options),
    "check": Command(vectors.run_check, "judge results that were computed from vectors", vectors.check_options),
    "ledger": Command(ledger.run_ledger, "keep the ledger of known deviations true", ledger.ledger_options),
    "script": Command(
        script.run_script, "run one case and print the standalone script of its failure", script.script_options
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; prints what it makes, or in one sentence why its input cannot be used."""
    parser = argparse.ArgumentParser(prog="attention-conformance", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        command.options(commands.add_parser(name, help=command.text))
    options = vars(parser.parse_args(arguments))
    try:
        made = COMMANDS[options.pop("command")].run(**options)
    except UNFIT as error:
        print(f"error: {error}", file=sys.stderr)
        return UNUSABLE
    text, code = made if isinstance(made, tuple) else (made, 0)
    print(text)
    return code


if __name__ == "__main__":
    sys.exit(main())
