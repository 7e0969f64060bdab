"""``python -m bench COMMAND``: duets, and what the timing itself does to timings.

Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench import agreement, harness, interference
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


def _harness_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", type=int, default=200, help="pairs of chunks (default: %(default)s)")


def _harness(pairs: int) -> tuple[str, int]:
    found = harness.run(pairs=pairs)
    low, high = found["interval"]
    times = f"bare loop {1e6 * found['loop_seconds']:.1f} µs, by the protocol {1e6 * found['call_seconds']:.1f} µs"
    return f"{times}\nratio {found['ratio']:.4f} ({low:.4f} to {high:.4f}), {found['pairs']} pairs of chunks", 0


COMMANDS: dict[str, Command] = {
    "agree": Command(agreement.run, "whether two runs agree within the intervals that they print", agreement.options),
    "duet": Command(duet.run, "compare two git revisions or environments, in turns", duet.options),
    "evidence": Command(evidence.run, "measure how often a duet is wrong (an hour)", evidence.options),
    "harness": Command(_harness, "time by the protocol ÷ time of a bare loop, of a call of 100 µs", _harness_options),
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
