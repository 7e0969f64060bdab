"""Numbers, reasons and tables as the text of a Markdown page."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

#: Text for a number that does not exist.
NONE = "–"

#: Significant digits of times and rates: the third already differs between two runs.
DIGITS = 3

#: Characters that Markdown interprets, except an underscore within a word, which it leaves unchanged.
_ACTIVE = re.compile(r"[\\`*\[\]~]|(?<![^\W_])_|_(?![^\W_])")

#: First parts of text that becomes a link or a mention by itself: "@name", "#12", "GH-12", "https://", "www.".
_LINKED = re.compile(r"@|#(?=\d)|\bGH-(?=\d)|:(?=//)|\bwww(?=\.)", re.IGNORECASE)

#: Characters of a reason: about two lines of a table cell.
WIDEST = 140


def table(frame: pd.DataFrame, left: int | None = None, *, ready: bool = False) -> str:
    """A Markdown table of text, which is made inert; cells that are ``ready`` are Markdown, and stay unchanged.

    ``left`` columns are aligned left and the rest right, None: numbers right.
    """
    numeric = [pd.api.types.is_numeric_dtype(kind) for kind in frame.dtypes]
    align = ["right" if (number if left is None else at >= left) else "left" for at, number in enumerate(numeric)]
    shown = (frame if ready else frame.map(inert)).astype(object)
    texts = shown.map(_without_bars)
    texts.columns = pd.Index([_without_bars(inert(name)) for name in texts.columns], name=texts.columns.name)
    return str(texts.to_markdown(index=False, disable_numparse=True, colalign=align))


def fold(title: str, text: str) -> str:
    """A part of a page that opens with a click."""
    return f"<details><summary>{title}</summary>\n\n{text}\n\n</details>"


def words(outcome: str) -> str:
    """An outcome in a reader's words: ``known deviation``."""
    return outcome.replace("-", " ")


def settings(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Settings of the place where a file was made: the name of each that has a value, and its text."""
    told = ((name, value) for name, value in environment.items() if name != "envelopes")  # they have their own lines
    known = {name.replace("_", " "): value for name, value in told if value not in ("", {}, None)}
    return [(name, _setting(value)) for name, value in known.items()]


def _setting(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {one}" for key, one in value.items())
    return digits(value) if isinstance(value, float) else str(value)


def _without_bars(text: str) -> str:
    """A cell with its bars escaped, so that they end no column."""
    return str(text).replace("|", "\\|")


def printable(value: Any) -> str:
    """A value on one line of a terminal, without the characters that would control it."""
    return "".join(one if one.isprintable() else "\ufffd" for one in " ".join(str(value).split()))


def inert(value: Any) -> str:
    """A value as plain text in Markdown: it becomes no tag, link, picture, emphasis or mention.

    Addresses and numbers of issues, which a page turns into links by itself, are broken by a zero-width space.  Bars
    are left to the table.
    """
    text = _ACTIVE.sub(r"\\\g<0>", printable(value)).replace("&", "&amp;").replace("<", "&lt;")
    return _LINKED.sub("\\g<0>\u200b", text)


def code(value: Any) -> str:
    """A name between backticks; its own are replaced, so that none ends it."""
    text = " ".join(str(value).split()).replace("`", "'")
    return f"`{text}`"


def shortened(text: str, widest: int = WIDEST) -> str:
    """A reason that is short enough for a table; the CSV has all of it."""
    return text if len(text) <= widest else text[: widest - 1].rstrip() + "…"


def digits(number: float) -> str:
    """A number to DIGITS significant digits, without an exponent where that is short."""
    if not math.isfinite(number) or number == 0:
        return f"{number:g}"
    places = DIGITS - 1 - math.floor(math.log10(abs(number)))
    if places > 5:
        return f"{number:.1e}"
    return f"{number:.{max(places, 0)}f}"


def percent(number: float, places: int = 0) -> str:
    """A share as a percentage: "12 %"."""
    return f"{100 * number:.{places}f} %"


def share(number: float) -> str:
    """A share of the bound, "–" where nothing was compared."""
    if math.isnan(number):
        return NONE
    return "∞" if math.isinf(number) else f"{number:.2f}"
