"""Rows: problems that are too large to be judged whole are judged by exact rows of some heads, drawn by the seed.

Three ways together leave no row unseen:

- A block of batches and heads of every problem is judged, by its first and last row and random rows; the blocks of
  BLOCKS problems have every head.
- Rows of the whole answer that look odd are judged: one that is not finite, one that is all zero, the largest and the
  smallest.
- In some problems queries repeat: a few different ones, each in many places that the seed draws, and all heads have the
  same keys and values.  There a few rows of the reference judge every row of the answer.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attention_conformance.conformance.cases.base import NUMPY_DTYPES, Case
from attention_conformance.conformance.cases.data import Data, Rng
from attention_conformance.conformance.cases.given import GivenRows, GivenSdpa, given
from attention_conformance.conformance.cases.parts import forms, odd_rows, part_of, query_heads
from attention_conformance.conformance.judging.judge import failed, judge, wrong_form
from attention_conformance.conformance.judging.outcomes import Outcome, Result
from attention_conformance.conformance.spec.inputs import Inputs
from attention_conformance.impls.calls import Reply
from attention_conformance.impls.envelope import Shape

#: Scores (B, Hq, Sq, Sk) up to which a problem is judged whole.
WHOLE = 1 << 25

#: Operations that the reference and the bound of a problem's block may take, about a second; least rows of a block;
#: operations of a score in addition to those of a row of k and one of v.
WORK, FEWEST, BESIDE = 1 << 27, 4, 64

#: Number of problems whose blocks together have every head.
BLOCKS = 8

#: Number of different queries where they repeat.
DIFFERENT = 8


def large(s: Shape) -> bool:
    """Whether problems of this size are judged by rows."""
    return s.b * s.hq * s.sq * s.sk > WHOLE


def bytes_of(s: Shape, dtype: str) -> int:
    """Approximate memory of a problem here and in the worker: arrays, their copies on the way, and those kept."""
    size = s.b * (s.hq * s.sq * (s.d + s.dv) + s.hkv * s.sk * (s.d + s.dv))
    return 8 * size * np.dtype(NUMPY_DTYPES[dtype]).itemsize


def by_batch(data: Data, dtype: str) -> Data:
    """The same data made batch by batch, so that it is never all in float64 at once."""

    def make(rng: Rng, s: Shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        one, target = replace(s, b=1), NUMPY_DTYPES[dtype]
        parts = [[a.astype(target) for a in data(rng, one)] for _ in range(s.b)]
        q, k, v = (np.concatenate(each) for each in zip(*parts, strict=True))
        return q, k, v

    return make


def repeated(data: Data, seed: int) -> Data:
    """A few different queries, each in places that the seed draws, and the same keys and values in all heads."""

    def make(rng: Rng, s: Shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        q, k, v = data(rng, replace(s, b=1, hq=1, hkv=1, sq=DIFFERENT))
        spread = (np.broadcast_to(a, (s.b, s.hkv, *a.shape[2:])) for a in (k, v))
        return (q[0, 0][places(s, seed)], *spread)

    return make


def places(s: Shape, seed: int) -> np.ndarray:
    """(B, Hq, Sq): the index of the query in each place; every query occurs."""
    drawn = np.random.default_rng([seed, 7]).integers(0, DIFFERENT, (s.b, s.hq, s.sq), dtype=np.uint8)
    count = min(DIFFERENT, drawn.size)
    drawn.reshape(-1)[:count] = np.arange(count)
    return drawn


@dataclass(frozen=True)
class Block:
    """Batches, key heads and rows of a problem."""

    batches: tuple[int, ...]
    heads: tuple[int, ...]
    rows: tuple[int, ...]

    @property
    def text(self) -> str:
        """Place of the block, in words."""
        return f"batches {_runs(self.batches)}, key heads {_runs(self.heads)}, {len(self.rows)} rows"


def block(s: Shape, seed: int, number: int) -> Block:
    """The block of a problem by its number; BLOCKS blocks in a row have every head of every batch."""
    order = np.random.default_rng([seed, 3])
    cut = min(s.b, BLOCKS)
    while BLOCKS % cut:
        cut -= 1
    across = min(s.hkv, BLOCKS // cut)
    parts = list(
        itertools.product(np.array_split(order.permutation(s.b), cut), np.array_split(order.permutation(s.hkv), across))
    )
    batches, heads = parts[number % len(parts)]
    pairs = len(batches) * len(heads) * (s.hq // s.hkv)
    count = min(s.sq, max(FEWEST, WORK // max(1, pairs * s.sk * (s.d + s.dv + BESIDE))))
    drawn = np.random.default_rng([seed, 5, number]).permutation(s.sq)
    rows = dict.fromkeys([0, s.sq - 1, *drawn.tolist()])
    return Block(_sorted(batches), _sorted(heads), _sorted(list(rows)[:count]))


def judge_rows(reply: Reply, case: Case, blank: Result, seed: int, number: int) -> Result:
    """The result of a reply to a large problem.

    Parameters
    ----------
    case
        A case, whose name begins with ``repeated`` where its data are.
    seed, number
        Seed and number of the problem, which draw the block.
    """
    if reply.status != "returned":
        return judge(reply, case, blank, every_profile=False)
    s, inputs = case.shape, case.inputs(blank.dtype)
    whole = forms({"output": (s.b, s.hq, s.sq, s.dv)})
    finding = wrong_form(reply, case, whole, blank.dtype)
    if finding is not None:
        return failed(blank, case, finding)
    output = reply.results["output"]
    group = s.hq // s.hkv
    odd = [Block((b,), (h // group,), (row,)) for b, h, row in odd_rows(output)]
    parts = [block(s, seed, number), *odd]
    for each in parts:
        result = _of_block(reply, inputs, s, each, blank)
        if result.outcome is not Outcome.PASSED:
            return replace(result, reason=f"{result.reason} ({each.text})")
    if case.name.startswith("repeated"):
        for words, folded in (("largest", np.max), ("smallest", np.min)):
            result = _folded(reply, inputs, s, seed, blank, folded)
            if result.outcome is not Outcome.PASSED:
                return replace(result, reason=f"{result.reason} (the {words} of all rows of equal queries)")
    return result


def _of_block(reply: Reply, inputs: Inputs, s: Shape, part: Block, blank: Result) -> Result:
    batches, heads = np.array(part.batches), np.array(part.heads)
    queries = query_heads(heads, s.hq // s.hkv)
    given_part = Inputs(
        inputs.q[np.ix_(batches, queries)],
        inputs.k[np.ix_(batches, heads)],
        inputs.v[np.ix_(batches, heads)],
        {name: part_of(name, value, batches, heads, queries) for name, value in inputs.keywords.items()},
    )
    shape = replace(s, b=len(batches), hq=len(queries), hkv=len(heads))
    sizes = {"output": (shape.b, shape.hq, shape.sq, shape.dv)}
    case = given(GivenRows, given_part, "SDPA-16", shape, blank.dtype, rows=part.rows, whole=sizes, names=("output",))
    taken = reply.results["output"][np.ix_(batches, queries, np.array(part.rows))]
    return judge(replace(reply, results={"output": taken}), case, blank, every_profile=False)


def _folded(reply: Reply, inputs: Inputs, s: Shape, seed: int, blank: Result, folded: Any) -> Result:
    """Judge every row of the answer at once, by the elementwise extremes of the rows whose queries are equal."""
    at, output = places(s, seed), reply.results["output"].reshape(-1, s.dv)
    count = min(DIFFERENT, at.size)
    rows = np.stack([folded(output[at.ravel() == each], axis=0) for each in range(count)])[None, None]
    q = inputs.q.reshape(-1, s.d)[:count][None, None]  # the first places have one of each
    small = Inputs(q, inputs.k[:1, :1], inputs.v[:1, :1])
    shape = Shape(1, 1, 1, count, s.sk, s.d, s.dv)
    case = given(GivenSdpa, small, "SDPA-16", shape, blank.dtype, names=("output",))
    return judge(replace(reply, results={"output": rows}), case, blank, every_profile=False)


def _sorted(numbers: Any) -> tuple[int, ...]:
    return tuple(sorted(int(each) for each in numbers))


@functools.cache
def _runs(numbers: tuple[int, ...]) -> str:
    from attention_conformance.conformance.judging.message import runs

    return runs(list(numbers))


def cost(s: Shape, seed: int, repeats: bool = True) -> str:
    """Sentence on the part that is judged of each problem of a size."""
    one = block(s, seed, 0)
    pairs = len(one.batches) * len(one.heads) * (s.hq // s.hkv)
    return (
        f"{len(one.rows)} of {s.sq} rows in {pairs} of {s.b * s.hq} heads a problem, every head within {BLOCKS}"
        f" problems{', all rows where queries repeat' * repeats}"
    )
