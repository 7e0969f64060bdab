"""The data behind the views, inside the page: frames by column, texts stored once, compressed.

50,000 results are about 10 MB of JSON and well under 1 MB here.  Only the messages of failures have to be limited.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from attention_conformance.reports.html.views import EXACT

#: Characters of messages in a page.  They compress about tenfold (measured: 0.6 MB of the published messages become
#: 50 kB), so that all together stay under 1.5 MB where not even two of them are alike in their numbers.
MESSAGES = 8_000_000

#: Characters of one message: the longest published one has 3,300.
MESSAGE = 8_000

#: Of gzip: with the highest the page of 50,000 results is 1 % smaller.
LEVEL = 6

#: What stands at the end of a longer message, and for one that is not here.
CUT = "\n(Cut here: the result file has the rest.)"
LEFT_OUT = "(Left out of this page for its size: the result file has it.)"


def packed(frames: Mapping[str, pd.DataFrame], **more: Any) -> str:
    """Frames and other plain data as base64 of gzip of JSON.  The same data gives the same text."""
    data = {"frames": {name: _columns(frame) for name, frame in frames.items()}, **more}
    return compressed(json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False))


def compressed(text: str) -> str:
    """A text as base64 of gzip, the same for the same text."""
    return base64.b64encode(gzip.compress(text.encode("utf-8"), compresslevel=LEVEL, mtime=0)).decode("ascii")


def limited(frame: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Results with no more than MESSAGES characters of messages, and how many messages were left out.

    Each implementation keeps the first message of each clause and kind of failure before any keeps a second one.
    """
    text = frame["message"].fillna("")
    text = text.where(text.str.len() <= MESSAGE, text.str.slice(0, MESSAGE) + CUT)
    turn = frame.assign(there=text.ne("")).groupby(["implementation", "broken", "failure"], dropna=False)["there"]
    order = turn.cumsum().sort_values(kind="stable").index
    kept = text.str.len().reindex(order).cumsum().reindex(frame.index) <= MESSAGES
    left = int((~kept & text.ne("")).sum())
    return frame.assign(message=text.where(kept | text.eq(""), LEFT_OUT)), left


def _columns(frame: pd.DataFrame) -> dict[str, Any]:
    return {"length": len(frame), "columns": {str(name): _column(frame[name]) for name in frame.columns}}


def _column(column: pd.Series) -> Any:
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
        return [_number(value) for value in column.tolist()]
    known = column.astype(object)
    codes, texts = pd.factorize(known.where(known.notna(), "").map(str))
    return {"codes": codes.tolist(), "texts": list(texts)}


def _number(value: float) -> float | int | str | None:
    """JSON has no NaN and no infinity: a missing number is null, an infinite one a text."""
    if isinstance(value, int) or math.isinf(value):
        return value if isinstance(value, int) else str(value)
    if math.isnan(value):
        return None
    return int(value) if value.is_integer() and abs(value) < 2**53 else float(f"{value:.{EXACT}g}")
