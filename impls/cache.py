"""Cache folder of the user: where compiled programs, exported models and bundles are kept between runs."""

from __future__ import annotations

import os
from pathlib import Path

#: Variable that names another folder than the user's; "" keeps nothing.
VARIABLE = "ATTENTION_CONFORMANCE_CACHE"


def folder(name: str) -> Path | None:
    """The folder for one kind of files; it need not exist.

    Parameters
    ----------
    name
        Name of the folder: a framework, or the kind of files.

    Returns
    -------
    Path or None
        None where the variable ``ATTENTION_CONFORMANCE_CACHE`` is empty: nothing is kept.
    """
    named = os.environ.get(VARIABLE)
    if named == "":
        return None
    base = named or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "attention-conformance" / name
