"""``python -m studies``: lists the studies; ``python -m studies NAME`` runs one, and has its ``--help``.

With ``--pages`` every table in the pages is regenerated from the data.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Sequence

import studies
from attention_conformance.impls.loading import nearest
from studies.common import Study

#: Modules of this folder that are no study.
PARTS = ("__main__", "by_hand", "causes", "common", "held_out", "held_out_second", "library_functions")


def names() -> list[str]:
    """The names of the studies."""
    return [one.name for one in pkgutil.iter_modules(studies.__path__) if one.name not in PARTS and not one.ispkg]


def study(name: str) -> Study:
    """The study of this name; no other is imported."""
    found: Study = importlib.import_module(f"studies.{name}").STUDY
    return found


def main(words: Sequence[str]) -> int:
    """Run the words of the command line; returns the exit code, 2 for an unknown study."""
    if words and words[0] != "--pages":
        if words[0] not in names():
            print(f"error: no study {words[0]!r}{nearest(words[0], names())}", file=sys.stderr)
            return 2
        return study(words[0]).main(words[1:])
    for one in map(study, names()):
        print(f"python -m studies {one.name:14} {one.about}")
        if words and any(one.tables):
            one.print()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
