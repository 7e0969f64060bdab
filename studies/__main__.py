"""``python -m studies``: lists the studies; with ``--pages`` sets every table into its page again, from the data."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import studies
from studies.common import Study


def every() -> dict[str, Study]:
    """The studies by name."""
    modules = (importlib.import_module(f"studies.{one.name}") for one in pkgutil.iter_modules(studies.__path__))
    found = [module.STUDY for module in modules if hasattr(module, "STUDY")]
    return {study.name: study for study in found}


if __name__ == "__main__":
    for name, study in every().items():
        print(f"python -m studies.{name:14} {study.about}")
        if "--pages" in sys.argv and any(study.tables):
            study.print()
