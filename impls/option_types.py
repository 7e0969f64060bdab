"""Types of options: wrong numbers and files are refused before a command begins."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

from attention_conformance.impls.contract import InputError


def count(least: int) -> Callable[[str], int]:
    """The type of an option that takes a whole number.

    Parameters
    ----------
    least
        The least number that it takes.

    Returns
    -------
    Callable[[str], int]
        A function for argparse.

    Raises
    ------
    argparse.ArgumentTypeError
        By that function, for any other number.
    """

    def convert(text: str) -> int:
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"{text}: expected at least {least}")
        return number

    convert.__name__ = "int"  # argparse names it where the text is not a number
    return convert


def above(bound: float) -> Callable[[str], float]:
    """The type of an option that takes a finite number beyond a bound.

    Parameters
    ----------
    bound
        The number that is just too small.

    Returns
    -------
    Callable[[str], float]
        A function for argparse.

    Raises
    ------
    argparse.ArgumentTypeError
        By that function, for any other number.
    """

    def convert(text: str) -> float:
        number = float(text)
        if not bound < number < math.inf:
            raise argparse.ArgumentTypeError(f"{text}: expected more than {bound:g}, and finite")
        return number

    convert.__name__ = "float"
    return convert


def refuse_unwritable(option: str, path: Path | str | None) -> None:
    """Refuse a file that cannot be written, as far as that is known without writing it.

    Parameters
    ----------
    option
        Option that names it.
    path
        The file, None where there is none.

    Raises
    ------
    InputError
        If its folder does not exist, or it is a folder.
    """
    if path is None:
        return
    if Path(path).is_dir():
        raise InputError(f"{option} {path}: it is a folder")
    if not Path(path).resolve().parent.is_dir():
        raise InputError(f"{option} {path}: there is no folder {Path(path).parent}")
