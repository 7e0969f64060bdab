"""Clause groups: the parts of the spec as a reader looks for them, coarser than clauses and finer than operators."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from attention_conformance.reports.model import tables

#: The clauses of plain attention in each group, by their numbers; the other parts of the spec are a group each.
SDPA = {
    "Scores": (1, 2, 3, 4, 5, 6, 42, 43, 44),
    "Masks": (7, 8, 13),
    "Causal": (9, 10),
    "Windows and lengths": (11, 12),
    "Fully masked rows": (15, 24),
    "Empty axes": (20,),
    "Softmax and output": (14, 16, 18, 19, 38),
    "Grouped heads": (17,),
    "NaN and infinity": (21, 22, 23, 26),
    "Accuracy and dtype": (25, 27),
    "Call consistency": (28, 29, 30, 39, 40, 41, 45, 46),
    "Input validation": (31, 32, 33, 34, 35, 36),
}

#: Titles of the other parts of the spec.
PARTS = {
    "DEC": "Decoding",
    "BLOCK": "Block masks",
    "TREE": "Trees",
    "MHA": "Multi-head layer",
    "SUB": "Sub-layer",
    "GRAD": "Gradients",
    "VARLEN": "Packed sequences",
    "PAGED": "Paged caches",
    "MERGE": "Merging",
    "MLA": "Latent attention",
}

#: Every group in the order of a page.
GROUPS = (*SDPA, *PARTS.values())

_OF = {f"SDPA-{number}": name for name, numbers in SDPA.items() for number in numbers}


def group(clause: str) -> str:
    """The group of a clause, or its prefix where there is none, as a file may name any clause."""
    prefix = clause.rpartition("-")[0]
    return _OF.get(clause) or PARTS.get(prefix, prefix)


def by_group(results: pd.DataFrame) -> pd.DataFrame:
    """One row per implementation, device and group of its cases: cases by outcome.

    A case counts once in a group, however many of its clauses are there; ``results`` is the frame of
    ``tables.conformance``.
    """
    judged = tables.judgements(results)
    judged = judged.assign(group=judged["clause"].map(group))
    once = judged.drop_duplicates([*tables.WHO, "dtype", "case", "group"])
    counts = once.groupby([*tables.WHO, "group", "outcome"], sort=False).size().unstack(fill_value=0)
    return counts.reindex(columns=list(tables.OUTCOMES), fill_value=0).reset_index().rename_axis(columns=None)


def ordered(found: Iterable[str]) -> list[str]:
    """Groups in the order of a page, unknown ones last."""
    names = dict.fromkeys(found)
    return [*(name for name in GROUPS if name in names), *(name for name in names if name not in GROUPS)]
