"""Covering designs: every possible pair and requested triple is reached, and the impossible ones are counted."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from attention_conformance.conformance.cases.design import PARTS, Coverage, Factors, Row, design, restricted

#: Factors in which one pair and no triple is too large.
SMALL = Factors(
    sq=(1, 8, 64),
    sk=(1, 65, 129),
    width=((32, 32), (192, 128)),
    group=(1, 3),
    hkv=(1, 2),
    b=(1,),
    option=("plain", "mask", "causal"),
    dtype=("float32", "float16"),
    lse=(False, True),
    triples=(("sk", "option", "dtype"),),
    limit=64 * 129 * 32 - 1,
)


def met(rows: tuple[Row, ...], *parts: str) -> set[tuple[object, ...]]:
    """Combinations of values of some parts that occur in rows."""
    return {tuple(getattr(row, part) for part in parts) for row in rows}


def test_every_possible_combination_is_reached() -> None:
    """Counted from the rows, all pairs but the one that costs too much are reached, and all triples."""
    found = design(SMALL)
    for parts in [*itertools.combinations(PARTS, 2), ("sk", "option", "dtype")]:
        possible = set(itertools.product(*(SMALL.values(part) for part in parts)))
        missing = possible - met(found.rows, *parts)
        assert missing == ({(64, 129)} if parts == ("sq", "sk") else missing)
        (counted,) = (each for each in found.coverage if each.parts == parts)
        assert (counted.total, counted.reached) == (len(possible), len(possible) - len(missing))
        assert counted.too_large + counted.refused == len(missing)


def test_no_row_costs_more_than_the_limit() -> None:
    """No row exceeds the limit of cost, and no row occurs twice."""
    rows = design(SMALL).rows
    assert max(row.cost for row in rows) <= SMALL.limit
    assert len(set(rows)) == len(rows)


def test_a_design_is_smaller_than_the_product() -> None:
    """A design covers all pairs with less than a tenth of the rows of the product."""
    product = 1
    for part in PARTS:
        product *= len(SMALL.values(part))
    assert len(design(SMALL).rows) < product / 10


def test_a_design_is_the_same_every_time() -> None:
    """A seed always gives the same design, and another seed gives another one."""
    assert design(SMALL) == design(SMALL)
    assert design(SMALL, seed=1).rows != design(SMALL).rows


def test_triples_are_asked_for_only_within() -> None:
    """Triples are formed only of the values that ``within`` names; other values meet in pairs."""
    found = design(replace(SMALL, within={"sk": (65,)}))
    assert found.coverage[0] == Coverage(("sk", "option", "dtype"), 6, 6, 0, 0)
    assert len(found.rows) <= len(design(SMALL).rows)


def test_what_an_envelope_refuses_is_counted() -> None:
    """In an envelope of equal lengths other pairs of lengths are counted as refused, not reached."""
    found = design(replace(SMALL, sq=(1, 65), sk=(1, 65), within={}, allows=lambda row: row.sq == row.sk))
    (lengths,) = (each for each in found.coverage if each.parts == ("sq", "sk"))
    assert lengths == Coverage(("sq", "sk"), 4, 2, 0, 2)
    assert all(row.sq == row.sk for row in found.rows)


def test_restricted_factors_keep_what_is_allowed() -> None:
    """Restricted factors keep their allowed values in the original order."""
    kept = restricted(SMALL, sk=(129, 65, 7), dtype=("float16",))
    assert (kept.sk, kept.dtype, kept.sq) == ((65, 129), ("float16",), SMALL.sq)
    assert met(design(kept).rows, "dtype") == {("float16",)}


def test_nothing_allowed_is_no_row() -> None:
    """An envelope that allows none of a part's values gives no row."""
    assert design(restricted(SMALL, dtype=())).rows == ()


@pytest.mark.parametrize("part", PARTS)
def test_one_value_of_a_part_is_enough(part: str) -> None:
    """A part with a single value is combined with every other part."""
    first = SMALL.values(part)[0]
    assert met(design(replace(SMALL, **{part: (first,)}, within={})).rows, part) == {(first,)}  # type: ignore[arg-type]
