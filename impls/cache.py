"""Cache folder of the user: where compiled programs, exported models and bundles are kept between runs."""

from __future__ import annotations

import os
from pathlib import Path

#: Names another folder than the user's; "" keeps nothing.
VARIABLE = "ATTENTION_CONFORMANCE_CACHE"


def folder(name: str) -> Path | None:
    """The folder of one kind of things, which need not be there.

    Parameters
    ----------
    name
        Name of the folder: that of a framework, or of what is kept.

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
