"""``python -m reports history FOLDER -o DIR``: its arguments."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from reports import outputs
from reports.history.series import history
from reports.history.writing import write


def main(arguments: Sequence[str]) -> int:
    """Read the folder, write the history, print where it is."""
    parser = argparse.ArgumentParser(
        prog="python -m reports history",
        description="How every cell went over the runs of a folder, with the places where it changed.",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="result files, also in folders of it")
    parser.add_argument("-o", "--output", required=True, type=Path, metavar="DIR", help="folder to write")
    given = parser.parse_args(arguments)
    found = history(given.folder)
    if outputs.left_out("history.html"):
        print(outputs.left_out("history.html"), file=sys.stderr)
    print(*write(found, given.output), sep="\n")
    return 0
