"""``python -m conformance``: the cases as a manual page, and the page of hand-computed examples."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from conformance import examples_page
from conformance.cases import all_cases
from conformance.clauses import clauses


def list_cases() -> str:
    """Every case under the clause that it breaks first: name, dtypes, and why it is there."""
    lines = []
    for clause in clauses().values():
        cases = [c for c in all_cases().values() if c.clauses[0] == clause.id]
        if cases:
            lines += ["", f"{clause.id} · {clause.title} ({clause.level.value})"]
        for case in cases:
            also = f" [also {', '.join(case.clauses[1:])}]" if case.clauses[1:] else ""
            lines.append(f"  {case.name} ({', '.join(case.dtypes)}): {case.why}{also}")
    return "\n".join(lines[1:])


def list_clauses() -> str:
    """Every clause with its level and sentence."""
    return "\n".join(f"{c.id} · {c.title} ({c.level.value}): {c.sentence}" for c in clauses().values())


def write_examples() -> str:
    """Write EXAMPLES.md anew from examples.toml."""
    return str(examples_page.write())


COMMANDS: dict[str, tuple[Callable[[], str], str]] = {
    "cases": (list_cases, "list every case, by clause"),
    "clauses": (list_clauses, "list every clause"),
    "examples": (write_examples, "regenerate EXAMPLES.md"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; prints what it makes."""
    parser = argparse.ArgumentParser(prog="python -m conformance", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (_, text) in COMMANDS.items():
        commands.add_parser(name, help=text)
    chosen = parser.parse_args(arguments)
    print(COMMANDS[chosen.command][0]())
    return 0


if __name__ == "__main__":
    sys.exit(main())
