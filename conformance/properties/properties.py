"""The properties: what holds between calls of one implementation, each with the clause that it follows from.

A property draws what else it needs, calls the implementation, and says which results are equal; by convention the
last call is the one under test, and the calls before it say what it should give.  Inputs of every call are exact in
the storage dtype, so that the two sides are equal in the real numbers, and differ by the bounds at most.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import hypothesis
import numpy as np
from hypothesis import strategies as st

from attention_conformance.conformance.properties import transform
from attention_conformance.conformance.properties.strategies import Space, problems
from attention_conformance.conformance.properties.trial import Trial, constant, merged
from attention_conformance.impls.operators import SDPA

AS_DRAWN = "the problem as drawn"


@dataclass(frozen=True)
class Property:
    """A property: its name, the clause it follows from, and what it needs from an implementation."""

    name: str
    clause: str
    check: Callable[[Trial], None]
    #: Keywords that a problem must have.
    needs: frozenset[str]
    #: Keywords that a problem must not have, each unless the implementation has the keyword given ("" for never).
    unless: dict[str, str]

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def sentence(self) -> str:
        """Sentence of the property."""
        return re.sub(r"\s+", " ", self.check.__doc__ or "").strip()

    @property
    def operator(self) -> str:
        """The operator that it tests."""
        return SDPA.name

    def problems(self, keywords: frozenset[str], few: bool) -> st.SearchStrategy[Any]:
        """Problems to draw for an implementation with these keywords."""
        return problems(self.space(keywords, few))

    def space(self, keywords: frozenset[str], few: bool) -> Space:
        """Space to draw from for an implementation with these keywords."""
        barred = {name for name, needed in self.unless.items() if needed not in keywords}
        return Space(keywords - barred, self.needs, few)


PROPERTIES: dict[str, Property] = {}


def follows(clause: str, needs: str = "", **unless: str) -> Callable[[Callable[[Trial], None]], Property]:
    """Register a property that follows from a clause; its name is the function's in kebab case."""

    def register(check: Callable[[Trial], None]) -> Property:
        name = check.__name__.replace("_", "-")
        PROPERTIES[name] = Property(name, clause, check, frozenset(needs.split()), unless)
        return PROPERTIES[name]

    return register


@follows("SDPA-25")
def agrees_with_reference(trial: Trial) -> None:
    """The results with random options are those of the reference, within the bound of the declared profile."""
    answer = trial.call(trial.inputs, AS_DRAWN)
    for name, result in answer.results.items():
        trial.equal(name, result, constant(result.exact))


@follows("SDPA-16", is_causal="", window="", kv_lengths="")
def keys_permuted(trial: Trial) -> None:
    """The keys in another order, with their values, mask and bias, give the same output."""
    order = trial.draw(st.permutations(range(trial.inputs.k.shape[2])))
    one = trial.call(trial.inputs, AS_DRAWN)
    two = trial.call(transform.keys(trial.inputs, order), f"its keys in the order {order}")
    trial.same(two, one, "output", "lse")
    if "weights" in two.results:
        trial.equal("weights", two["weights"], one["weights"][..., order])


@follows("SDPA-14")
def scores_shifted(trial: Trial) -> None:
    """A number added to all scores of a row changes neither output nor weights, and moves lse by that number."""
    ways = [transform.shifted_by_bias] if "bias" in trial.context.keywords else []
    ways += [] if "softcap" in trial.inputs.keywords else [transform.shifted_by_coordinate]
    if not ways:
        hypothesis.reject()
    before, after, by, what = trial.draw(st.sampled_from(ways[::-1]))(trial.inputs, trial.draw)
    one = trial.call(before, f"{AS_DRAWN}, rounded so that the shift is exact")
    two = trial.call(after, what)
    trial.same(two, one, "output", "weights")
    if "lse" in two.results:
        trial.equal("lse", two["lse"], one["lse"] + by)


@follows("SDPA-1")
def batch_alone(trial: Trial) -> None:
    """A batch computed alone is that batch computed with the others."""
    hypothesis.assume(trial.inputs.q.shape[0] > 1)
    b = trial.draw(st.integers(0, trial.inputs.q.shape[0] - 1))
    one = trial.call(trial.inputs, AS_DRAWN)
    two = trial.call(transform.batch(trial.inputs, b), f"its batch {b} alone")
    for name in two.results:
        trial.equal(name, two[name], one[name][b : b + 1])


@follows("SDPA-17")
def head_alone(trial: Trial) -> None:
    """A query head computed alone, with the one key and value head that it reads, is that head among the others."""
    hypothesis.assume(trial.inputs.q.shape[1] > 1)
    h = trial.draw(st.integers(0, trial.inputs.q.shape[1] - 1))
    one = trial.call(trial.inputs, AS_DRAWN)
    two = trial.call(transform.head(trial.inputs, h), f"its query head {h} alone")
    for name in two.results:
        trial.equal(name, two[name], one[name][:, h : h + 1])


@follows("SDPA-16")
def linear_in_v(trial: Trial) -> None:
    """The output for the values a·v + b·w is a times the output for v plus b times the output for w."""
    v, w = transform.two_values(trial.inputs, trial.problem.name)
    a, b = trial.draw(st.sampled_from(transform.FACTORS)), trial.draw(st.sampled_from(transform.FACTORS))
    one = trial.call(replace(trial.inputs, v=v), "its values v, rounded")
    two = trial.call(replace(trial.inputs, v=w), "other values w")
    three = trial.call(replace(trial.inputs, v=transform.combined(a, v, b, w)), f"the values {a:g}·v + {b:g}·w")
    trial.equal("output", three["output"], a * one["output"] + b * two["output"])
    trial.same(three, one, "weights", "lse")


@follows("SDPA-16")
def constant_v(trial: Trial) -> None:
    """If all keys have one value, every row that has a key gives that value, as the weights add up to 1."""
    x = replace(trial.inputs, v=np.repeat(trial.inputs.v[:, :, :1], trial.inputs.v.shape[2], axis=2))
    answer = trial.call(x, "all its values those of the first key")
    value = np.repeat(x.v[:, :, :1].astype(np.float64), x.q.shape[1] // x.v.shape[1], axis=1)
    has_key = answer.case.expected(trial.context.target.dtype).allowed.any(axis=3, keepdims=True)
    trial.equal("output", answer["output"], constant(np.where(has_key, value, 0.0)))


@follows("SDPA-9", needs="is_causal")
def causal_prefix(trial: Trial) -> None:
    """With is_causal the first rows are the same without the later rows and the keys of these."""
    x = trial.inputs
    count = trial.draw(st.integers(1, x.q.shape[2])) if not trial.few else (x.q.shape[2] + 1) // 2
    keys = min(x.k.shape[2], count + transform.largest_offset(x))
    hypothesis.assume(keys > 0 and (count, keys) != (x.q.shape[2], x.k.shape[2]))
    prefix = transform.with_lengths(transform.keys(transform.rows(x, range(count)), range(keys)))
    one = trial.call(x, AS_DRAWN)
    two = trial.call(prefix, f"its first {count} rows and {keys} keys")
    for name in two.results:
        part = (..., slice(keys)) if name == "weights" else ...
        trial.equal(name, two[name], one[name][:, :, :count][part])


@follows("SDPA-19", needs="return_lse", is_causal="causal_offset", window="causal_offset")
def keys_split(trial: Trial) -> None:
    """Two parts of the keys, each attended to alone and merged by their lse, give what all keys give."""
    x = trial.inputs
    total = x.k.shape[2]
    hypothesis.assume(total > 1)
    first = trial.draw(st.integers(1, total - 1)) if not trial.few else total // 2
    left = trial.call(transform.with_lengths(transform.keys(x, range(first))), f"its first {first} keys")
    rest = transform.shifted_keys(transform.keys(x, range(first, total)), first)
    right = trial.call(rest, "its other keys")
    whole = trial.call(x, AS_DRAWN)
    output, lse = merged(left["output"], left["lse"], right["output"], right["lse"])
    trial.equal("output", whole["output"], output)
    trial.equal("lse", whole["lse"], lse)


@follows("SDPA-21")
def hidden_keys(trial: Trial) -> None:
    """Keys that no row may attend to can be put in or left out, whatever finite numbers they and their values hold."""
    ways = transform.ways(trial.inputs, trial.context.keywords)
    if not ways:
        hypothesis.reject()
    way = trial.draw(st.sampled_from(ways))
    count = trial.draw(st.integers(1, 4)) if not trial.few else 3
    more, kept = transform.added(trial.inputs, way, count, trial.problem.name)
    one = trial.call(trial.inputs, AS_DRAWN)
    two = trial.call(more, f"with {count} keys more, hidden by {way.value}")
    trial.same(two, one, "output", "lse")
    if "weights" in two.results:
        trial.equal("weights", two["weights"][..., kept], one["weights"])


@follows("DEC-1", needs="past_key past_value", is_causal="causal_offset", window="causal_offset")
def past_split_off(trial: Trial) -> None:
    """The first keys given as a past, in their positions, give what all keys give, and the present holds them all."""
    x = trial.inputs
    first = trial.draw(st.integers(0, x.k.shape[2])) if not trial.few else x.k.shape[2] // 2
    one = trial.call(x, AS_DRAWN)
    two = trial.call(transform.with_past(transform.with_offset(x), first), f"its first {first} keys as a past")
    trial.same(two, one, "output", "weights", "lse")
    for name, joined in (("present_key", x.k), ("present_value", x.v)):
        trial.equal(name, two[name], constant(joined.astype(np.float64)))


@follows("DEC-4", needs="past_key past_value is_causal", causal_offset="", kv_lengths="")
def in_two_steps(trial: Trial) -> None:
    """A sequence in two steps, the second with the present of the first as its past, gives the same as in one."""
    length = min(trial.inputs.q.shape[2], trial.inputs.k.shape[2])
    hypothesis.assume(length > 1)
    count = trial.draw(st.integers(1, length - 1)) if not trial.few else length // 2
    x = transform.rows(transform.keys(trial.inputs, range(length)), range(length))
    whole = trial.call(x, f"as many rows as keys, {length}")
    begin = transform.rows(transform.keys(x, range(count)), range(count))
    first = trial.call(transform.with_past(begin, 0), f"its first {count} rows and keys")
    rest = transform.with_past(transform.rows(x, range(count, length)), count)
    present = {new: first.reply.results[old] for new, old in transform.PRESENT.items()}
    second = trial.call(transform.given(rest, **present), "its other rows and keys, with the present as the past")
    for name in ("output", "weights", "lse"):
        if name in second.results:
            trial.equal(name, second[name], whole[name][:, :, count:])
