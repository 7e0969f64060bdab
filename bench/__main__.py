"""``attention-conformance compare-revisions``: two git revisions or environments, compared in turns.  Nothing else should run then."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from attention_conformance.bench.paired import command as duet
from attention_conformance.bench.paired.sides import SideError
from attention_conformance.bench.workloads.workload import WorkloadError
from attention_conformance.impls.contract import ImplementationError

#: How a command ends whose options cannot be used.
UNUSABLE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; prints what it found, or in one sentence why its options cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Comparisons in the same minutes.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    text = "compare two git revisions or environments, in turns"
    duet.options(commands.add_parser("duet", help=text, description=text))
    try:
        found, code = duet.run(**vars(parser.parse_args(arguments)))
    except (SideError, WorkloadError, ImplementationError) as error:
        print(f"error: {error}", file=sys.stderr)
        return UNUSABLE
    print(found)
    return code


if __name__ == "__main__":
    sys.exit(main())
