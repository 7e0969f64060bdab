"""``python -m bench COMMAND``: duets, and what the timing itself does to timings.

Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench import agreement, cold, cores, freed, harness, interference
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
    "agree": Command(agreement.run, "whether two runs agree within the intervals that they print", agreement.options),
    "cold": Command(cold.run, "what emptied caches do to a call", cold.options),
    "cores": Command(cores.run, "by how much the core that a turn begins on decides", cores.options),
    "duet": Command(duet.run, "compare two git revisions or environments, in turns", duet.options),
    "evidence": Command(evidence.run, "measure how often a duet is wrong (an hour)", evidence.options),
    "freed": Command(freed.run, "what it costs that freed memory goes back to the system", freed.options),
    "harness": Command(harness.command, "time by the protocol ÷ time of a bare loop, of 100 µs", harness.options),
    "turns": Command(interference.run, "what taking turns does to timings", interference.options),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; prints what it found, or in one sentence why its options cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Comparisons, and figures about the timing.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        command.options(commands.add_parser(name, help=command.text, description=command.text))
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
