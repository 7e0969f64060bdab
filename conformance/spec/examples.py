"""EXAMPLES.md: the hand-computed examples of examples.toml, one table of keys and one of rows for each batch and head.

The fields are explained in tests/hand_examples.py, which recomputes every number; here they are texts.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).parents[1] / "examples.toml"
PAGE = DATA.with_name("EXAMPLES.md")

_HEAD = """\
# Attention by hand

Made from [`examples.toml`](examples.toml) by `attention-conformance pages`; change that file, not this page.

Each example can be redone with a pencil, from left to right. For every query row: the products q · k with each
key; the scores, after scale, softcap, bias and masks (−inf where the key is not allowed); the powers exp(score); their
sum; the weights, which are the powers over their sum; the output, which is the weighted sum of the values; and
the log-sum-exp, which is the natural logarithm of the sum.

With the scale ln 2 and whole numbers in q and k the powers are powers of two: exp(n ln 2) = 2ⁿ. A *shift* is a
number taken off all scores of a row before the powers and added to the log-sum-exp after them. A number with a decimal
point in a step or a result is rounded; every other number is exact.
"""

_MERGES = """\
# Merging by hand

One row. A part has an output and a power, exp of its log-sum-exp; the weights are the powers over their sum, the output
is the weighted sum of the parts' outputs, and the log-sum-exp is the natural logarithm of the sum. A power of 0 is a
log-sum-exp of −inf.
"""

_GRADIENTS = """\
# Merging by hand, backwards

One row again, with the gradients of a loss with respect to the merged output, g, and to the merged log-sum-exp, h. The
gradient of a part's output is its weight times g, that of its log-sum-exp its weight times g · (its output − the merged
one) + h.
"""

#: The tables of the data.
_TABLES = ("examples", "packed", "paged", "latents", "merges", "merge_gradients")

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
    """The page, from the data.

    Returns
    -------
    str
        Markdown.
    """
    data = tomllib.loads(DATA.read_text(encoding="utf-8"))
    names = [each["name"] for table in _TABLES for each in data[table]]
    contents = "\n".join(f"- [{name}](#{name})" for name in names)
    attention = (*map(_section, data["examples"]), *map(_packed, data["packed"]), *map(_paged, data["paged"]))
    merges = (_MERGES, *map(_merge, data["merges"]), _GRADIENTS, *map(_merge_gradient, data["merge_gradients"]))
    sections = (*attention, *map(_latent, data["latents"]), *merges)
    return "\n".join([_HEAD, contents, "", *sections])


def write() -> Path:
    """Write the page next to the data and return its path.

    Returns
    -------
    Path
        Path of the page.
    """
    PAGE.write_text(render(), encoding="utf-8")
    return PAGE


def _packed(example: Mapping[str, Any]) -> str:
    """An example of packed sequences: a table of its keys and one of its rows, each with its sequence."""
    inputs = example["inputs"]
    keys = zip(_sequences(example["cu_seqlens_k"], len(inputs["k"])), inputs["k"], inputs["v"], strict=True)
    cells = [[j, n, *map(_nested, numbers)] for j, (n, *numbers) in enumerate(keys)]
    tables = [_table(["key", "sequence", "k", "v"], cells)]
    if "bias" in example:
        numbers = [[n, i, _nested(row)] for n, own in enumerate(example["bias"]) for i, row in enumerate(own)]
        tables.append(_table(["sequence", "row", "bias / ln 2"], numbers))
    return _with_rows(example, tables)


def _paged(example: Mapping[str, Any]) -> str:
    """An example of a paged cache: tables of its slots, of its sequences and of its rows."""
    inputs = example["inputs"]
    slots = [
        [page, slot, *map(_nested, numbers)]
        for page, pair in enumerate(zip(inputs["k_cache"], inputs["v_cache"], strict=True))
        for slot, numbers in enumerate(zip(*pair, strict=True))
    ]
    owned = enumerate(zip(example["block_table"], example["kv_lengths"], strict=True))
    tables = [
        _table(["page", "slot", "k", "v"], slots),
        _table(["sequence", "pages", "keys"], [[n, _nested(row), length] for n, (row, length) in owned]),
    ]
    if "k_new" in inputs:
        new = zip(inputs["k_new"], inputs["v_new"], strict=True)
        tables.append(_table(["row", "new k", "new v"], [[i, *map(_nested, each)] for i, each in enumerate(new)]))
    return _with_rows(example, tables)


def _sequences(boundaries: list[int], count: int) -> list[Any]:
    """The sequence of each row of a pack, "none" after the last."""
    lengths = [end - start for start, end in itertools.pairwise(boundaries)]
    own = [n for n, length in enumerate(lengths) for _ in range(length)]
    return [*own, *["none"] * (count - len(own))]


def _with_rows(example: Mapping[str, Any], tables: list[str]) -> str:
    """An example of several sequences: its options, tables of its keys, the table of its rows, and wrong results."""
    inputs, results = example["inputs"], example["results"]
    columns = [inputs["q"], example["steps"]["powers"], example["steps"]["totals"], results["output"], results["lse"]]
    rows = zip(_sequences(example["cu_seqlens_q"], len(inputs["q"])), *columns, strict=True)
    options = {"scale": "ln 2", **example.get("options", {})}
    wrong = [
        f"- {each['result']} = {_nested(_texts(each['value']))}: {each['because']}"
        for each in example.get("rejected", [])
    ]
    parts = [
        f"## {example['name']}",
        f"{example['shows']} ({', '.join(example['clauses'])})",
        "Options: " + ", ".join(f"{name} = {_option(name, value)}" for name, value in options.items()) + ".",
        *tables,
        _table(
            ["row", "sequence", "q", "powers", "sum", "output", "log-sum-exp"],
            [[i, n, *map(_nested, numbers)] for i, (n, *numbers) in enumerate(rows)],
        ),
    ]
    return "\n\n".join([*parts, *(["\n".join(["Wrong:", "", *wrong])] if wrong else [])]) + "\n"


def _section(example: Mapping[str, Any]) -> str:
    parts = [f"## {example['name']}", f"{example['shows']} ({', '.join(example['clauses'])})"]
    if "options" in example:
        parts.append(
            "Options: " + ", ".join(f"{name} = {_option(name, v)}" for name, v in example["options"].items()) + "."
        )
    parts += _heads(example)
    if "rejected" in example:
        wrong = [
            f"- {w['result']} = {_nested(_single(_texts(w['value'])))}: {w['because']}" for w in example["rejected"]
        ]
        parts.append("\n".join(["Wrong:", "", *wrong]))
    return "\n\n".join(parts) + "\n"


def _merge(example: Mapping[str, Any]) -> str:
    """An example of merging: a table of parts, and the results."""
    columns = zip(*(example[name] for name in ("powers", "weights", "outputs")), strict=True)
    rows = [[p, power, weight, _nested(_texts(output))] for p, (power, weight, output) in enumerate(columns)]
    total = example["total"]
    results = f"Output: {_nested(_texts(example['output']))}. Log-sum-exp: {f'ln({total})' if total else '−inf'}."
    wrong = [f"- output = {_nested(_texts(each['output']))}: {each['because']}" for each in example.get("rejected", ())]
    parts = [f"## {example['name']}", f"{example['shows']} ({', '.join(example['clauses'])})"]
    parts += [_table(["part", "power", "weight", "output"], rows), results]
    return "\n\n".join(parts + (["\n".join(["Wrong:", "", *wrong])] if wrong else [])) + "\n"


def _merge_gradient(example: Mapping[str, Any]) -> str:
    """An example of the gradients of a merge: a table of parts, what was given, and wrong results."""
    names = ("powers", "weights", "outputs", "grad_outputs", "grad_lses")
    columns = zip(*(example[name] for name in names), strict=True)
    rows = [[p, *(_nested(_texts(each)) for each in row)] for p, row in enumerate(columns)]
    heads = ["part", "power", "weight", "output", "gradient of output", "gradient of log-sum-exp"]
    merged, g = (_nested(_texts(example[name])) for name in ("output", "grad_output"))
    given = f"Merged output: {merged}. Gradient of it: {g}. Gradient of the merged log-sum-exp: {example['grad_lse']}."
    wrong = []
    for each in example["rejected"]:
        (name,) = each.keys() - {"because"}
        wrong.append(f"- {name} = {_nested(_texts(each[name]))}: {each['because']}")
    parts = [f"## {example['name']}", f"{example['shows']} ({', '.join(example['clauses'])})", given]
    return "\n\n".join([*parts, _table(heads, rows), "\n".join(["Wrong:", "", *wrong])]) + "\n"


def _latent(example: Mapping[str, Any]) -> str:
    """An example of latent attention: a table of tokens, one of heads, and wrong results."""
    tokens = [
        [j, *map(_nested, each)] for j, each in enumerate(zip(example["latents"], example["k_rope"], strict=True))
    ]
    names = ("q", "q_rope", "w_uk", "w_uv", "powers", "output")
    heads = [[h, *map(_nested, each)] for h, each in enumerate(zip(*(example[name] for name in names), strict=True))]
    wrong = [f"- output = {_nested(_texts(each['output']))}: {each['because']}" for each in example["rejected"]]
    parts = [f"## {example['name']}", f"{example['shows']} ({', '.join(example['clauses'])})", "Options: scale = ln 2."]
    parts += [_table(["key", "latent", "rotary key"], tokens), _table(["head", *names], heads)]
    return "\n\n".join([*parts, "\n".join(["Wrong:", "", *wrong])]) + "\n"


def _heads(example: Mapping[str, Any]) -> Iterator[str]:
    """Two tables for each batch and query head."""
    tables = {name: _texts(value) for part in ("inputs", "steps", "results") for name, value in example[part].items()}
    q, k, v = (tables[name] for name in "qkv")
    batches, heads = q.shape[:2]
    group = heads // k.shape[1]
    columns = {title: tables[name] for name, title in _COLUMNS.items() if name in tables}
    for b, h in np.ndindex(batches, heads):
        if batches * heads > 1:
            shared = f", key head {h // group}" if group > 1 else ""
            yield f"**Batch {b}, head {h}{shared}**"
        keys = [[j, _nested(k[b, h // group, j]), _nested(v[b, h // group, j])] for j in range(k.shape[2])]
        yield _table(["key", "k", "v"], keys) if keys else f"No keys: k is {k.shape}, v is {v.shape}."
        rows = [[i, _nested(q[b, h, i]), *(_nested(t[b, h, i]) for t in columns.values())] for i in range(q.shape[2])]
        yield _table(["row", "q", *columns], rows) if rows else f"No queries: q is {q.shape}."


def _option(name: str, value: Any) -> str:
    text = _nested(_texts(value))
    return f"({text})" if name == "window" else text


def _texts(value: Any) -> np.ndarray:
    """Nested lists, one number, or ``{shape = […]}`` for an array without elements, as an array."""
    return np.empty(value["shape"], object) if isinstance(value, dict) else np.array(value, object)


def _single(array: np.ndarray) -> np.ndarray:
    """The array without its batch and head axes, if both have length 1."""
    return array[0, 0] if array.shape[:2] == (1, 1) else array


def _nested(array: Any) -> str:
    """Nested lists in parentheses; a single vector has none."""
    if np.ndim(array) < 2:
        return ", ".join(map(str, np.ravel(array)))
    return ", ".join(f"({_nested(part)})" for part in array)


def _table(titles: list[str], rows: list[list[Any]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)
