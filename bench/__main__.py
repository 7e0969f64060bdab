"""``python -m bench``: what is measured outside ``pytest bench``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.duet import command as duet
from bench.duet import evidence
from bench.duet.sides import SideError
from bench.workloads import WorkloadError
from impls.contract import ImplementationError

#: How a command ends whose options cannot be used.
UNUSABLE = 2

#: What says in one sentence why they cannot.
UNFIT = (SideError, WorkloadError, ImplementationError)


@dataclass(frozen=True)
class Command:
    """What a command runs, what it says of itself, and its options; it gives what is printed and the exit code."""

    run: Callable[..., tuple[str, int]]
    text: str
    options: Callable[[argparse.ArgumentParser], None]


COMMANDS: dict[str, Command] = {
    "duet": Command(duet.run, "compare two git revisions or environments, in turns", duet.options),
    "evidence": Command(evidence.run, "measure how often a duet is wrong (minutes)", evidence.options),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; prints what it found, or in one sentence why its options cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        command.options(commands.add_parser(name, help=command.text))
    options = vars(parser.parse_args(arguments))
    try:
        text, code = COMMANDS[options.pop("command")].run(**options)
    except UNFIT as error:
        print(f"error: {error}", file=sys.stderr)
        return UNUSABLE
    print(text)
    return code


if __name__ == "__main__":
    sys.exit(main())
