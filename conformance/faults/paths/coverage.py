"""COVERAGE.md: what the cases at the sizes of kernels reach, counted from the design, the paths and their faults."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from tabulate import tabulate

from attention_conformance.conformance.cases import (
    Case,
    Shape,
    asked_kernel_cases,
    asked_serving_cases,
    kernels,
    serving,
)
from attention_conformance.conformance.cases.design import PARTS, Coverage, Factors, Row, design
from attention_conformance.conformance.cases.envelopes import ENVELOPES, KINDS, Kind
from attention_conformance.conformance.cases.fit import dtypes_for, fit_kernels
from attention_conformance.conformance.cases.kernel_paths import Call, kernel_paths
from attention_conformance.conformance.faults import envelopes
from attention_conformance.conformance.faults.paths import PATH_FAULTS
from attention_conformance.impls.envelope import Sizes

PAGE = Path(__file__).parents[2] / "COVERAGE.md"

OPENING = (
    "# Sizes where kernels break: what the cases reach\n\n"
    "Written by `attention-conformance pages`; `conformance/kernel_paths.toml` has the paths, "
    "`conformance/cases/kernels.py` the cases.\n\n"
    "A case is a row of a covering design: query length, key length, width, group, key heads, batch, options, dtype, "
    "and whether lse is asked for. Every two values meet in some row, and so do every three that a block names, unless "
    "the row would cost more than the block's limit (too large: with the cheapest of all other parts) or is no row of "
    "the block (refused: in the square block, two lengths that differ)."
)

ENVELOPES_OPENING = (
    "What faults of attention and its gradients do inside the envelopes of kinds of kernels, and those of packed "
    "sequences and their gradients, paged and quantised caches and merging inside those of kernels that serve, by "
    "`attention-conformance kill-matrix --envelopes`; layers have none, and faults between ranks are none of a kernel. "
    "A "
    "fault is judged on the cases fitted to the envelope and on those at the sizes of kernels inside it, until two "
    "have caught it. One that none catches is looked for by random problems inside the envelope and by every case at a "
    "random shape inside it; a fault on a path by calls that take the path. Where no problem shows it, it does not "
    "show; where no call that was drawn takes its path, the path is outside. Of kernels that serve a case is asked "
    "only where the envelope's calls have it: its lengths are what it is for, and none is changed. Their random "
    "problems are those of `--fuzz`, 300 of an operator and 600 of paged caches, fitted likewise."
)

SERVING_OPENING = (
    "`conformance/cases/serving.py` has designs of packed sequences, their gradients and paged caches in the same way: "
    "every two of the longest lengths, width, group, key heads, number of sequences, options (with the page size), "
    "dtype and lse meet in some row. A run asks a plugged-in implementation those that some fault needs, {asked} of "
    "{all}."
)

#: The most that a row may cost, as a multiple of the cheapest row, inside an envelope where that exceeds the limit.
MARGIN = 4

INSIDE_OPENING = (
    "A run fits one list of cases to every envelope, those that some fault in some envelope needs "
    "(`conformance/cases/kernels_requested.txt`), and makes no design inside it. By the kill matrices below, which are "
    "made with these cases and those of the clauses, no fault that shows in an envelope is caught by fewer than two "
    "cases, so that a design inside it would add calls and no fault; `--case 'kernel-*'` asks the whole tier, fitted "
    "likewise. What the list leaves out is pairs of sizes: of the pairs that a design of the same blocks inside each "
    "envelope reaches, so many are in a run. A pair is of two of the nine parts of a row. Sizes that fitting moves "
    "off the values of a design count for none, and the cases of the clauses are not counted."
)


def text() -> str:
    """The page."""
    cases = list(kernels.cases())
    parts = [OPENING, f"{len(cases)} cases: {_by_block([case.name for case in cases])}."]
    for name, block in kernels.BLOCKS.items():
        rows, coverage = kernels.designed(name).rows, kernels.designed(name).coverage
        parts += [
            f"## {name}",
            f"{block.why}. {len(rows)} rows of a cost of at most {block.factors.limit:,} multiplications, "
            f"{sum(row.cost for row in rows) / 1e6:.0f} million together. {_reached(coverage)}",
            _table(coverage),
        ]
    paths = _paths([kernels.call_of(case) for case in cases])
    inside = ["## Pairs inside envelopes", INSIDE_OPENING, _inside()]
    packed = ["## Forms that serve", *_serving()]
    found = ["## Envelopes", *_envelopes(envelopes.published())]
    return "\n\n".join([*parts, *packed, *inside, *found, "## Paths", paths]) + "\n"


def _serving() -> list[str]:
    """The designs of packed and paged attention, and the number of their cases that a run asks for."""
    asked = Counter(name.split("-")[1] for name in asked_serving_cases())
    body = [
        (name, block.operator, block.why, len(serving.designed(name)), asked[name])
        for name, block in serving.BLOCKS.items()
    ]
    opening = SERVING_OPENING.format(asked=asked.total(), all=sum(row[3] for row in body))
    return [opening, tabulate(body, ("block", "operator", "what", "cases", "in a run"), tablefmt="pipe")]


@functools.cache
def _inside() -> str:
    """Pairs that a design inside each envelope reaches, and how many of them the cases of a run reach."""
    heads = ("envelope", "pairs", "in a run", "share", "cases of a design", "cases in a run", "cost of both, million")
    return tabulate([(name, *_pairs(kind)) for name, kind in ENVELOPES.items()], heads, tablefmt="pipe")


def _pairs(kind: Kind) -> tuple[Any, ...]:
    """Pairs of a design inside an envelope, those that a run has, their share, and the cases and cost of both."""
    rows = [row for block in kernels.BLOCKS.values() for row in design(within(block.factors, kind)).rows]
    asked = fit_kernels(asked_kernel_cases().values(), kind.envelope, kind.dtypes)
    run = [row_of(case, dtype) for case in asked for dtype in dtypes_for(case, kind.dtypes)]
    pairs, reached = _met(rows), _met(rows) & _met(run)
    cost = " and ".join(f"{sum(row.cost for row in each) / 1e6:.0f}" for each in (rows, run))
    return len(pairs), len(reached), f"{len(reached) / len(pairs):.0%}", len(rows), len(run), cost


def _met(rows: list[Row]) -> set[tuple[Any, ...]]:
    """The pairs of values that rows have: two parts, and the value of each."""
    pairs = list(itertools.combinations(range(len(PARTS)), 2))
    return {(i, row[i], j, row[j]) for row in rows for i, j in pairs}


def within(factors: Factors, kind: Kind) -> Factors:
    """The factors of a block inside an envelope: those values that it has, or its nearest one where it has none.

    The lengths are empty where the block needs ones that differ and the envelope takes only equal ones.
    """
    e = kind.envelope

    def some(values: tuple[int, ...], sizes: Sizes) -> tuple[int, ...]:
        return tuple(n for n in values if n in sizes) or (sizes.near(values[0])[0],)

    def takes(row: Row) -> bool:
        inside = Shape(row.b, row.hkv * row.group, row.hkv, row.sq, row.sk, *row.width) in e
        return inside and (factors.allows is None or factors.allows(row))

    sq, sk = some(factors.sq, e.query_lengths), some(factors.sk, e.key_lengths)
    if e.length_relation == "Sq = Sk":
        sq = sk = tuple(sorted({*sq} & {*sk}))
    hkv = some(factors.hkv, e.key_head_counts)
    group = tuple(
        g for g in factors.group if g in e.group_sizes and (e.head_counts.free or hkv[0] * g in e.head_counts)
    )
    width = tuple(w for w in factors.width if not any(e.widths_outside(*w)))
    b = some(factors.b, e.batch_sizes)
    least = math.prod(min(each, default=0) for each in (b, hkv, group, sq, sk, [sum(w) // 2 for w in width]))
    limit = factors.limit if least <= factors.limit else MARGIN * least
    dtype = tuple(d for d in factors.dtype if d in kind.dtypes)
    return replace(
        factors, sq=sq, sk=sk, width=width, group=group, hkv=hkv, b=b, dtype=dtype, limit=limit, allows=takes
    )


def row_of(case: Case, dtype: str) -> Row:
    """A case as a row of a design; options that are no set of a design get the names of the case's keywords."""
    s = case.shape
    keywords = case.keywords - {"return_lse"}
    named = {frozenset(each.makers): name for name, each in kernels.OPTION_SETS.items()}
    option = named.get(keywords, "+".join(sorted(keywords)))
    return Row(s.sq, s.sk, (s.d, s.dv), s.hq // s.hkv, s.hkv, s.b, option, dtype, "return_lse" in case.keywords)


def _envelopes(published: dict[str, Any]) -> list[str]:
    """Faults inside the envelope of each kind of kernel, and the names of those that too few cases catch."""
    body, lists = [], []
    for each in published["envelopes"]:
        states = Counter(fault["state"] for fault in each["faults"].values())
        shows = states["twice"] + states["once"] + states["missed"]
        counts = (states[name] for name in ("twice", "once", "missed", "hidden", "outside"))
        body.append((each["name"], each["line"], each["counts"]["cases"], shows, *counts))
        lists.append(f"### {each['name']}\n\n{_lacking(each)}")
    tried = [each["power"] for each in published["envelopes"] if each["power"][1]]
    power = " ".join(
        f"Of {of} faults that cases catch{f' in {name}' if len(tried) == 1 else ''} the random problems alone show {n}."
        for (n, of), name in ((p, next(e["name"] for e in published["envelopes"] if e["power"] == p)) for p in tried)
    )
    heads = ("envelope", "takes", "cases", "show", "by two cases", "by one", "by none", "do not show", "path outside")
    computed = {each["name"] for each in published["envelopes"]}
    if missing := ", ".join(name for name in KINDS if name not in computed):
        power += f"\n\nNot computed yet: {missing}."
    return [f"{ENVELOPES_OPENING} {power}", tabulate(body, heads, tablefmt="pipe"), *lists]


def _lacking(envelope: dict[str, Any]) -> str:
    """The faults that only one case catches, those that show but no case catches, and those that do not show."""
    by_state: dict[str, list[str]] = {name: [] for name in ("once", "missed", "hidden")}
    for name, fault in envelope["faults"].items():
        if fault["state"] == "once":
            by_state["once"].append(f"- {name}: `{next(iter(fault['caught']))}`")
        elif fault["state"] == "missed":
            by_state["missed"].append(f"- {name}: shown by {fault['example']}")
        elif fault["state"] == "hidden":
            by_state["hidden"].append(name)
    parts = []
    if by_state["once"]:
        parts.append("Caught by one case alone:\n\n" + "\n".join(by_state["once"]))
    if by_state["missed"]:
        parts.append("Caught by no case, though they show:\n\n" + "\n".join(by_state["missed"]))
    if by_state["hidden"]:
        parts.append(f"Not shown by any problem: {', '.join(by_state['hidden'])}.")
    return "\n\n".join(parts) or "All that show are caught by two cases."


def _by_block(names: list[str]) -> str:
    counted = Counter(name.split("-")[1] for name in names)
    return ", ".join(f"{count} {name}" for name, count in counted.items())


def _reached(coverage: tuple[Coverage, ...]) -> str:
    """The pairs and triples that are reached, in a sentence each."""
    sentences = []
    for strength, word in ((2, "pairs"), (3, "triples")):
        found = [each for each in coverage if len(each.parts) == strength]
        total, reached = sum(each.total for each in found), sum(each.reached for each in found)
        sentences.append(f"{reached:,} of {total:,} {word}.")
    return " ".join(sentences)


def _table(coverage: tuple[Coverage, ...]) -> str:
    """Triples, and the pairs that are not all reached."""
    shown = [each for each in coverage if len(each.parts) > 2 or each.reached < each.total]
    body = [(" × ".join(each.parts), each.total, each.reached, each.too_large, each.refused) for each in shown]
    return tabulate(body, ("parts", "combinations", "reached", "too large", "refused"), tablefmt="pipe")


def _paths(calls: list[Call]) -> str:
    """Each path with its source, the number of cases that take it, and the number of its faults."""
    faults = Counter(fault.sources[0].partition(" ")[2] for fault in PATH_FAULTS.values())
    body = [
        (
            f"[{path.id}]({path.link})",
            path.kernel,
            path.what,
            ", ".join(each.text for each in path.when),
            sum(path.taken(call) for call in calls),
            faults[path.id],
        )
        for path in kernel_paths().values()
    ]
    kernels_of = {path.kernel for path in kernel_paths().values()}
    opening = f"{len(body)} paths of {len(kernels_of)} kernels, {len(PATH_FAULTS)} faults."
    return opening + "\n\n" + tabulate(body, ("path", "kernel", "what", "when", "cases", "faults"), tablefmt="pipe")


def write(page: Path = PAGE) -> str:
    """Write the page.

    Parameters
    ----------
    page
        Path of the page.

    Returns
    -------
    str
        Path of the file.
    """
    page.write_text(text(), encoding="utf-8")
    return str(page)
