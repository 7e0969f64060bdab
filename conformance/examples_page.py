"""The examples as a Markdown page: one small table of keys and one of rows for each batch and head."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from conformance.examples import Example, Table, examples

PAGE = Path(__file__).with_name("EXAMPLES.md")

_HEAD = """\
# Attention by hand

Made from [`examples.toml`](examples.toml) by `python -m conformance examples`; change that file, not this page.

Each example can be redone with a pencil, from left to right. For every query row: the products q · k with each
key; the scores, after scale, softcap, bias and masks (−inf where the key is not allowed); the powers exp(score); their
sum; the weights, which are the powers over their sum; the output, which is the weighted sum of the values; and
the log-sum-exp, which is the natural logarithm of the sum.

With the scale ln 2 and whole numbers in q and k the powers are powers of two: exp(n ln 2) = 2ⁿ. A *shift* is a
number taken off all scores of a row before the powers and added to the log-sum-exp after them. A number with a decimal
point in a step or a result is rounded; every other number is exact.
"""

#: Titles of the columns of the table of rows, by step or result.
_COLUMNS = {
    "products": "q · k",
    "scaled": "scaled",
    "capped": "capped",
    "scores": "scores",
    "shift": "shift",
    "powers": "powers",
    "totals": "sum",
    "weights": "weights",
    "output": "output",
    "lse": "log-sum-exp",
}


def render() -> str:
    """The page, from the data."""
    contents = "\n".join(f"- [{example.name}](#{example.name})" for example in examples())
    return "\n".join([_HEAD, contents, "", *map(_section, examples())])


def write() -> Path:
    """Write the page beside the data, and say where."""
    PAGE.write_text(render(), encoding="utf-8")
    return PAGE


def _section(example: Example) -> str:
    parts = [f"## {example.name}", f"{example.shows} ({', '.join(example.clauses)})"]
    if example.options:
        parts.append("Options: " + ", ".join(_options(example)) + ".")
    parts += _heads(example)
    if example.rejected:
        wrong = [f"- {w.result} = {_nested(_single(w.value.texts))}: {w.because}" for w in example.rejected]
        parts.append("\n".join(["Wrong:", "", *wrong]))
    return "\n\n".join(parts) + "\n"


def _options(example: Example) -> Iterator[str]:
    for name, value in example.options.items():
        if name in example.exact:
            yield f"{name} = {_nested(example.exact[name].texts)}"
        elif name == "window":
            yield f"window = ({', '.join('open' if side is None else str(side) for side in value)})"
        elif isinstance(value, np.ndarray):
            yield f"{name} = {_nested(value)}"
        else:
            yield f"{name} = {value}"


def _heads(example: Example) -> Iterator[str]:
    """Two tables for each batch and query head."""
    q, k, v = (example.inputs[name] for name in ("q", "k", "v"))
    batches, heads = q.shape[:2]
    group = heads // k.shape[1]
    tables = {**example.steps, **example.results}
    columns = {name: tables[name] for name in _COLUMNS if name in tables}
    for b, h in np.ndindex(batches, heads):
        if batches * heads > 1:
            shared = f", key head {h // group}" if group > 1 else ""
            yield f"**Batch {b}, head {h}{shared}**"
        keys = [[str(j), _cell(k, b, h // group, j), _cell(v, b, h // group, j)] for j in range(k.shape[2])]
        yield _table(["key", "k", "v"], keys) if keys else f"No keys: k is {k.shape}, v is {v.shape}."
        rows = [[str(i), _cell(q, b, h, i), *(_cell(t, b, h, i) for t in columns.values())] for i in range(q.shape[2])]
        titles = ["row", "q", *(_COLUMNS[name] for name in columns)]
        yield _table(titles, rows) if rows else f"No queries: q is {q.shape}."


def _cell(table: Table, *index: int) -> str:
    part = table.texts[index]
    return _nested(part) if isinstance(part, np.ndarray) else str(part)


def _single(array: np.ndarray) -> np.ndarray:
    """Without the batch and head axes if there is one of each."""
    return array[0, 0] if array.shape[:2] == (1, 1) else array


def _nested(array: np.ndarray) -> str:
    """Nested lists in parentheses; a vector without brackets of its own if it is all there is."""
    if array.ndim == 0:
        return str(array)
    if array.ndim == 1:
        return ", ".join(map(str, array)) if array.size != 1 else str(array[0])
    return ", ".join(f"({_nested(part)})" for part in array)


def _table(titles: list[str], rows: list[list[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
