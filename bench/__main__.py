"""``python -m bench COMMAND``: what the timing itself does to timings, measured; figures for bench/README.md.

Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from bench import harness, interference


def _harness(arguments: Sequence[str]) -> int:
    """``harness``: time by the protocol ÷ time of a bare loop, of a call of about 100 µs."""
    parser = argparse.ArgumentParser("python -m bench harness", description=_harness.__doc__)
    parser.add_argument("--pairs", type=int, default=200, help="pairs of chunks (default: %(default)s)")
    found = harness.run(pairs=parser.parse_args(arguments).pairs)
    low, high = found["interval"]
    print(f"bare loop {1e6 * found['loop_seconds']:.1f} µs, by the protocol {1e6 * found['call_seconds']:.1f} µs")
    print(f"ratio {found['ratio']:.4f} ({low:.4f} to {high:.4f}), {found['pairs']} pairs of chunks")
    return 0


#: By name; each takes the rest of the command line and returns the exit status.
COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "harness": _harness,
    "turns": interference.main,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command."""
    parser = argparse.ArgumentParser("python -m bench", description="Figures about the timing itself.")
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("rest", nargs=argparse.REMAINDER, help="options of the command; see COMMAND --help")
    given = parser.parse_args(arguments)
    return COMMANDS[given.command](given.rest)


if __name__ == "__main__":
    raise SystemExit(main())
