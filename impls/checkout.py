"""Checkout of this project: commands regenerate files only there, as an installed package is not written to."""

from __future__ import annotations

from pathlib import Path

from attention_conformance.impls.contract import InputError

#: The folder of the rooms: a checkout, or the installed package.
ROOT = Path(__file__).resolve().parents[1]


def is_checkout(root: Path = ROOT) -> bool:
    """Whether the rooms are in a checkout, where the package's own modules are in ``api``."""
    return (root / "api" / "__init__.py").is_file()


def writable(path: Path) -> Path:
    """The path of a file or folder that a command is about to write.

    Parameters
    ----------
    path
        Any path; the default of a command may be in the package.

    Returns
    -------
    Path
        The same path.

    Raises
    ------
    InputError
        If it is in an installed package.
    """
    if path.resolve().is_relative_to(ROOT) and not is_checkout():
        raise InputError(f"{path.name} is a part of the installed package: this command writes it in a checkout only")
    return path
