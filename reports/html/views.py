"""Cells of the page's tables: text to show, a value to sort and download, a tip, a link, a spoken form."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pandas as pd

from attention_conformance.reports.text import NONE, digits

#: Significant digits of a value: more than any measured number has.
EXACT = 6

#: The look of a name that is not wrapped.
NAME = "name"

#: Multiples of a byte, as the bench prints them.
UNITS = ("B", "kB", "MB", "GB", "TB")


@dataclass(frozen=True)
class Cell:
    """One cell.  ``value`` is sorted and downloaded, or the text if it is None."""

    text: str
    value: float | str | None = None
    tip: str = ""
    link: str = ""
    #: The CSS class that tints it: an outcome, or "best".
    look: str = ""
    #: Text for a screen reader, where the text that is shown is a symbol.
    spoken: str = ""

    @property
    def exact(self) -> float | str | None:
        """The value, where the text does not say it already."""
        return None if self.value is None or str(self.value) == self.text else self.value


@dataclass(frozen=True)
class Column:
    """A column's heading; numbers are aligned right, and a narrow column has an upright heading."""

    title: str
    number: bool = False
    narrow: bool = False


@dataclass(frozen=True)
class Table:
    """A table that can be sorted, filtered and downloaded; its file and its anchor have its ``name``."""

    name: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    #: Sentences below it.
    note: str = ""

    @property
    def shape(self) -> str:
        """Classes that say which columns are numbers, ``n3``, and which have names that are not wrapped, ``w1``."""
        looks = [{row[at].look for row in self.rows} for at in range(len(self.columns))]
        numbers = [f"n{at}" for at, column in enumerate(self.columns, 1) if column.number]
        return " ".join([*numbers, *(f"w{at}" for at, found in enumerate(looks, 1) if found == {NAME})])

    @property
    def extras(self) -> dict[str, dict[str, list[Any]]]:
        """Attributes that scripts add to the cells, by column: only scripts use them, and they compress well."""
        found: dict[str, dict[str, list[Any]]] = {}
        for at in range(len(self.columns)):
            cells = [row[at] for row in self.rows]
            each: dict[str, list[Any]] = {
                "v": [cell.exact for cell in cells],
                "tip": [cell.tip or None for cell in cells],
                "link": [cell.link or None for cell in cells],
                "spoken": [cell.spoken or None for cell in cells],
            }
            kept = {name: values for name, values in each.items() if any(value is not None for value in values)}
            if kept:
                found[str(at)] = kept
        return found


@dataclass(frozen=True)
class Group:
    """Names that have the same answer to a question: the text, a tip and a link of each."""

    label: str
    look: str
    items: tuple[Cell, ...]
    #: Whether it is shown on request: folded groups come last.
    folded: bool = False


@dataclass(frozen=True)
class Answer:
    """A question at the top of the page and what the records say."""

    name: str
    question: str
    lead: str
    groups: tuple[Group, ...] = ()
    note: str = ""
    #: The section that has more, and the title of the folded groups.
    more: str = ""
    fold: str = ""


def extras(shown: Iterable[Any]) -> dict[str, Any]:
    """The extras of every table among what a template shows, by the table's name."""
    flat = [one for each in shown for one in (each if isinstance(each, (list, tuple)) else [each])]
    return {one.name: one.extras for one in flat if isinstance(one, Table)}


def rows_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table, each as its values by column."""
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Names for columns: a plugged-in function's without the folders and packages of its file, where that is unique.

    Parameters
    ----------
    names
        Names of implementations.

    Returns
    -------
    dict[str, str]
        "vllm:decode@triton" by "package.kernels.vllm:decode@triton", "mine:attention" by "folder/mine.py:attention".
    """
    found = {name: _without_folders(name) for name in names}
    counts = Counter(found.values())
    return {name: short if counts[short] == 1 else name for name, short in found.items()}


def _without_folders(name: str) -> str:
    module, colon, function = name.rpartition(":")
    return f"{re.split('[./]', module.removesuffix('.py'))[-1]}:{function}" if colon else name


def columns(*titles: str, numbers: Sequence[str] = ()) -> tuple[Column, ...]:
    """Columns with these headings; those in ``numbers`` are numbers."""
    return tuple(Column(title, title in numbers) for title in titles)


def link(kind: str, *parts: str) -> str:
    """The fragment that opens the details of something: ``#clause/SDPA-15/torch-sdpa/cpu``."""
    return f"#{kind}/" + "/".join(quote(part, safe=":.*@+,=") for part in parts)


def number(value: float | None, text: str | None = None, **more: Any) -> Cell:
    """A number to three digits, with EXACT of them as its value; a dash where there is none.

    JSON has no infinity, so the value is a word that a script reads as the number.
    """
    if value is None or math.isnan(value):
        return Cell(NONE, "", **more)
    if math.isinf(value):
        return Cell(text or ("∞" if value > 0 else "-∞"), "Infinity" if value > 0 else "-Infinity", **more)
    return Cell(digits(value) if text is None else text, float(f"{value:.{EXACT}g}"), **more)


def milliseconds(seconds: float) -> str:
    """A time as the tables show it."""
    return f"{digits(seconds * 1e3)} ms"


def size(count: float) -> str:
    """Bytes in the largest unit that leaves a digit before the point."""
    if math.isnan(count):
        return NONE
    power = min(int(math.log10(count) // 3), len(UNITS) - 1) if count >= 1 else 0
    return f"{digits(count / 1000**power)} {UNITS[power]}"
