"""Numbers, reasons and tables as the text of a Markdown page."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

#: What stands for a number that does not exist.
NONE = "–"

#: Significant digits of times and rates: the third already differs between two runs.
DIGITS = 3

#: Characters of a reason: about two lines of a table cell.
WIDEST = 140


def table(frame: pd.DataFrame, left: int | None = None) -> str:
    """A Markdown table of text; ``left`` columns are aligned left and the rest right, None: numbers right."""
    numeric = [pd.api.types.is_numeric_dtype(kind) for kind in frame.dtypes]
    align = ["right" if (number if left is None else at >= left) else "left" for at, number in enumerate(numeric)]
    texts = frame.astype(object).map(escape)
    texts.columns = pd.Index(map(escape, texts.columns), name=texts.columns.name)
    return str(texts.to_markdown(index=False, disable_numparse=True, colalign=align))


def fold(title: str, text: str) -> str:
    """A part of a page that opens with a click."""
    return f"<details><summary>{title}</summary>\n\n{text}\n\n</details>"


def words(outcome: str) -> str:
    """An outcome as a reader has it: ``known deviation``."""
    return outcome.replace("-", " ")


def settings(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Settings of the place where a file was made: the name of each that has a value, and its text."""
    told = ((name, value) for name, value in environment.items() if name != "envelopes")  # lines of their own
    known = {name.replace("_", " "): value for name, value in told if value not in ("", {}, None)}
    return [(name, _setting(value)) for name, value in known.items()]


def _setting(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {one}" for key, one in value.items())
    return digits(value) if isinstance(value, float) else str(value)


def escape(value: Any) -> str:
    """A value as the text of a Markdown table's cell."""
    return " ".join(str(value).split()).replace("|", "\\|").replace("<", "&lt;")


def printable(value: Any) -> str:
    """A value on one line of a terminal, without the characters that would steer it."""
    return "".join(one if one.isprintable() else "\ufffd" for one in " ".join(str(value).split()))


def inert(value: Any) -> str:
    """A value as text where others read it: no tag, link, picture, emphasis or mention comes of it.

    Bars are left to the table.
    """
    text = re.sub(r"([\\`*_\[\]~])", r"\\\1", printable(value))
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("@", "@\u200b")


def code(value: Any) -> str:
    """A name as it is, between backticks; none of its own ends it."""
    text = " ".join(str(value).split()).replace("`", "'")
    return f"`{text}`"


def shortened(text: str) -> str:
    """A reason that leaves the table readable; the whole of it is in the CSV."""
    return text if len(text) <= WIDEST else text[: WIDEST - 1].rstrip() + "…"


def digits(number: float) -> str:
    """A number to DIGITS significant digits, without an exponent where that is short."""
    if not math.isfinite(number) or number == 0:
        return f"{number:g}"
    places = DIGITS - 1 - math.floor(math.log10(abs(number)))
    if places > 5:
        return f"{number:.1e}"
    return f"{number:.{max(places, 0)}f}"


def share(number: float) -> str:
    """A share of the bound, "–" where nothing was compared."""
    if math.isnan(number):
        return NONE
    return "∞" if math.isinf(number) else f"{number:.2f}"
