"""Checks of a timed call: whether its results are right, by the reference and the bound of its operator.

Long sequences are checked in part, each part exactly: for sdpa and the layers, sampled query rows, which depend on no
other row; for packed sequences, such rows of some sequences; for the gradients of sdpa, sampled key heads with their
query heads and all rows, since a row of grad_k is a sum over all query rows.  The gradients of a layer are checked
whole: those of its weights are sums over everything.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_conformance.bench.workloads import arguments
from attention_conformance.bench.workloads.workload import PACKED, Workload
from attention_conformance.conformance.bounds import gradients as gradient_bounds
from attention_conformance.conformance.bounds import merge as merge_bounds
from attention_conformance.conformance.bounds import mha as layer_bounds
from attention_conformance.conformance.bounds import mha_gradients as layer_gradient_bounds
from attention_conformance.conformance.bounds import sdpa as bounds
from attention_conformance.conformance.bounds.sdpa import Options
from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.cases.base import Blame
from attention_conformance.conformance.cases.parts import query_heads, sample, sample_heads
from attention_conformance.conformance.cases.store import CaseStore
from attention_conformance.conformance.judging.compare import Comparison, compare
from attention_conformance.conformance.judging.outcomes import Failure
from attention_conformance.conformance.spec import gradients as gradient_reference
from attention_conformance.conformance.spec import merge as merge_reference
from attention_conformance.conformance.spec import mha as layer_reference
from attention_conformance.conformance.spec import mha_gradients as layer_gradient_reference
from attention_conformance.conformance.spec import paged as paged_reference
from attention_conformance.conformance.spec import sdpa as reference
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.calls import same_bits
from attention_conformance.impls.contract import Framework, Profile

#: Number of the first input set; fresh sets have theirs from 0 on.
FIRST = -1

#: Bytes of expected results that are kept; beyond, the oldest are forgotten and computed again.
KEPT = 2**28

Inputs = tuple[dict[str, np.ndarray], dict[str, Any]]

#: Query rows of every head that a check recomputes: MOST_ROWS, and fewer for longer sequences, so that a check costs
#: PAIRS pairs (i, j), about 0.2 s on one core; but at least FEWEST_ROWS.
MOST_ROWS, FEWEST_ROWS, PAIRS = 32, 8, 2**17

#: Number of packed sequences in which a check recomputes rows.
SEQUENCES = 8

#: Scores (B, H, Sq, Sk) of the heads whose gradients a check recomputes, about 1 s on one core; at least one key head.
GRADIENT_SCORES = 2**21

Arrays = Mapping[str, np.ndarray]

#: Number of calls on the same inputs after a wrong result, to see whether each is wrong.
AGAIN = 5

#: A known cause of a first call that is the only wrong one.
FIRST_CALLS = (
    "a known cause: MKL's vector functions choose their kernel at their first call, a race where that is in parallel"
    " (pytorch 188792)"
)


class Invalid(Exception):
    """The cell's result is wrong, by ``clause``: it has no timing.

    ``failure`` is the way in which it failed, where the ledger of known deviations has such a way; for wrong values
    ``wrong`` marks the checked elements that are outside their bound, by result and in its shape.
    """

    def __init__(
        self, clause: str, text: str, failure: Failure | None = None, wrong: Mapping[str, np.ndarray] | None = None
    ) -> None:
        super().__init__(f"invalid: {clause}: {text}")
        self.clause, self.text, self.failure, self.wrong = clause, text, failure, wrong or {}


class Unstable(Invalid):
    """A result was wrong once, and right in every equal call that followed: it is timed, and shown apart.

    ``share`` is the worst error/bound of those calls; ``known`` whether a known cause fits.
    """

    def __init__(self, clause: str, text: str, share: float, known: bool) -> None:
        super().__init__(clause, text)
        self.share, self.known = share, known


def repeated(
    error: Invalid, again: Callable[[], Any | None], right: Callable[[Any], float], cause: str = ""
) -> Invalid:
    """The finding on a wrong result, with the number of equal calls that show it.

    Parameters
    ----------
    error
        Exception that says what is wrong with the result.
    again
        Calls once more on the same inputs; None where no further call can be made.
    right
        Gives the error/bound of a result of ``again``; raises Invalid where that is wrong.
    cause
        The known cause, if one fits.

    Returns
    -------
    Invalid
        ``error`` itself where every call is wrong; Unstable where only the first is.
    """
    wrong = calls = 1
    share = 0.0
    for _ in range(AGAIN):
        got = again()
        if got is None:
            break
        calls += 1
        try:
            share = max(share, right(got))
        except Invalid:
            wrong += 1
    if wrong == calls:
        return error
    known = f"; {cause}" if cause else ""
    text = f"{wrong} of {calls} calls on the same inputs are wrong: {error.text}{known}"
    if wrong == 1 and calls == AGAIN + 1:
        return Unstable(error.clause, text, share, bool(cause))
    return Invalid(error.clause, f"unstable: {text}")


def cause_of_first_call(framework: Framework, device: str, first: bool = True) -> str:
    """The known cause of a wrong first call in a process, "" where none fits."""
    return FIRST_CALLS if first and framework is Framework.TORCH and device == "cpu" else ""


@dataclass(frozen=True)
class Call:
    """A workload as it was called: its arguments and keywords, and the promised accuracy."""

    workload: Workload
    arrays: Arrays
    keywords: Mapping[str, Any]
    dtype: str
    profile: Profile
    #: Number of the input set, by which its expected results may be kept (References).
    number: int = 0


@dataclass(frozen=True)
class Part:
    """Part of a check: the compared elements of one result, their expected values, and their bound."""

    name: str
    index: Any
    expected: np.ndarray
    #: None for values that are only copied, and must be equal bit by bit.
    bound: np.ndarray | None

    def compare(self, results: Arrays, dtype: str) -> Comparison:
        """The comparison of this part of the results."""
        got = results[self.name][self.index]
        if self.bound is not None:
            return compare(self.name, got, self.expected, self.bound, dtype)
        if same_bits(got, self.expected):
            return Comparison(self.name, ok=True, share=0.0, total=got.size, wrong=0)
        return compare(self.name, got, self.expected.astype(np.float64), np.zeros(self.expected.shape), dtype)


#: Expected results of a call, in rows or heads that the seed chooses.
Expect = Callable[[Call, int], tuple[Part, ...]]

#: All of a result.
WHOLE = ...

#: Seeds of rows that each run has to itself, more than there are checks of one call.
ROW_SEEDS = 2**16


@functools.cache
def blame(operator: str) -> Blame:
    """Clause that a wrong result of an operator breaks, as its cases say."""
    return next(case.blame for case in every_case().values() if case.operator == operator)


def expect(call: Call, seed: int) -> tuple[Part, ...]:
    """Parts that are checked, by the reference, whatever the results are."""
    return _EXPECTED[call.workload.operator](call, seed)


def check(call: Call, results: Arrays, seed: int, expecting: Expect = expect) -> float:
    """The worst error/bound of the checked elements.  Raises Invalid if a result breaks a clause.

    ``seed`` chooses rows or heads; the first and the last are always among them.  ``expecting`` may have kept results
    of ``expect``.
    """
    clauses = blame(call.workload.operator)
    for name, shape in arguments.results(call.workload).items():
        got = results.get(name)
        if got is None or got.shape != shape:
            raise Invalid(
                clauses.shape,
                f"{_the(name)} has shape {None if got is None else got.shape}, expected {shape}",
                Failure.SHAPE,
            )
        if str(got.dtype) != arguments.dtype_of(name, call.dtype):
            text = f"{_the(name)} is {got.dtype}, the inputs are {call.dtype}"
            raise Invalid(clauses.dtype, text, Failure.DTYPE)
    wanted = [part for part in expecting(call, seed) if part.name in results]
    compared = [part.compare(results, call.dtype) for part in wanted]
    for one in compared:
        if not one.ok:
            text = _wrong(one, call.profile)
            raise Invalid(_clause(clauses, one.name), text, Failure.VALUE, _wrong_elements(wanted, compared, results))
    return max(one.share for one in compared)


def _wrong_elements(parts: Sequence[Part], compared: Sequence[Comparison], results: Arrays) -> dict[str, np.ndarray]:
    """Checked elements that are wrong, by result and in its shape; results without any are left out."""
    found: dict[str, np.ndarray] = {}
    for part, one in zip(parts, compared, strict=True):
        if not one.ok:
            mask = found.setdefault(part.name, np.zeros(results[part.name].shape, bool))
            mask[part.index] |= one.outside
    return found


def _the(name: str) -> str:
    return f"the {name}" if name == "output" else name


def _clause(clauses: Blame, name: str) -> str:
    """Clause that a value outside its bound breaks; a value that is only copied breaks another."""
    return clauses.of_result.get(name, clauses.value) if name in arguments.PRESENT else clauses.accuracy


def _wrong(one: Comparison, profile: Profile) -> str:
    where = "" if one.name == "output" else f" of {one.name}"
    return (
        f"{one.wrong} of {one.total} checked elements{where} are outside the bound of profile {profile.value};"
        f" worst: expected {one.expected:.6g}, got {one.got:.6g}, bound {one.bound:.2g}"
    )


def checked_rows(w: Workload) -> int:
    """Number of query rows of every head that are recomputed."""
    sequences = min(w.batch, SEQUENCES) if w.kind in PACKED else w.batch
    affordable = PAIRS // (sequences * w.heads * w.keys)
    return max(FEWEST_ROWS, min(MOST_ROWS, affordable))


def checked_heads(w: Workload) -> int:
    """Number of key heads whose gradients are recomputed."""
    group = w.heads // w.kv_heads
    affordable = GRADIENT_SCORES // (w.batch * group * w.length * w.keys)
    return max(1, min(w.kv_heads, affordable))


def _sdpa(call: Call, seed: int) -> tuple[Part, ...]:
    """Sampled rows; with past keys, rows of attention over past and new keys, joined."""
    w, options, (q, k, v) = call.workload, dict(call.keywords), call.arrays.values()
    present: list[Part] = []
    if w.past:
        k = np.concatenate([options.pop("past_key"), k], axis=2)
        v = np.concatenate([options.pop("past_value"), v], axis=2)
        options["causal_offset"] = w.past
        present = [Part(name, WHOLE, joined, None) for name, joined in (("present_key", k), ("present_value", v))]
    rows = sample(w.length, checked_rows(w), seed)
    expected = reference.sdpa(q, k, v, **options, rows=rows)
    known = Options(softcap=options.get("softcap"), bias=options.get("bias"))
    bound = bounds.bound(expected, known, call.dtype, call.profile)
    return (Part("output", np.s_[:, :, rows], expected.output, bound.output), *present)


def _layer(call: Call, seed: int) -> tuple[Part, ...]:
    """Sampled rows: the layer with those rows as queries, and all rows as keys and values.

    This holds for ``sublayer`` too: it normalises after the residual sum, so rows meet only in attention.
    """
    arrays, options = dict(call.arrays), dict(call.keywords)
    x = arrays["x_q"]
    rows = sample(x.shape[1], checked_rows(call.workload), seed)
    arrays["x_q"] = x[:, rows]
    options["x_kv"] = x
    if options.pop("is_causal", False):
        options["mask"] = np.arange(x.shape[1]) <= rows[:, None]
    if "bias" in options:
        options["bias"] = options["bias"][:, :, rows]
    form: Any = layer_reference.mha if call.workload.operator == "mha" else layer_reference.sublayer
    expected = form(**arrays, **options)
    bound = layer_bounds.bound(expected, Options(bias=options.get("bias")), call.dtype, call.profile)
    return (Part("output", np.s_[:, rows], expected.output, bound.output),)


def _gradients(call: Call, seed: int) -> tuple[Part, ...]:
    """All rows of sampled key heads and of their query heads."""
    w, options = call.workload, dict(call.keywords)
    kept = sample_heads(w.kv_heads, checked_heads(w), seed)
    of_queries = query_heads(kept, w.heads // w.kv_heads)

    def part(name: str) -> Any:
        return np.s_[:, kept if name in ("k", "v") else of_queries]

    if "bias" in options:
        options["bias"] = options["bias"][part("bias")]
    expected = gradient_reference.sdpa_grad(*(array[part(name)] for name, array in call.arrays.items()), **options)
    known = Options(softcap=options.get("softcap"), bias=options.get("bias"))
    bound = gradient_bounds.bound(expected, known, call.dtype, call.profile)
    return tuple(
        Part(name, part(name.removeprefix("grad_")), gradient, bound[name])
        for name, gradient in expected.gradients.items()
    )


def _layer_gradients(call: Call, seed: int) -> tuple[Part, ...]:
    """Every element."""
    expected = layer_gradient_reference.mha_grad(*call.arrays.values(), **call.keywords)
    bound = layer_gradient_bounds.bound(expected, Options(bias=call.keywords.get("bias")), call.dtype, call.profile)
    return tuple(Part(name, WHOLE, gradient, bound[name]) for name, gradient in expected.gradients.items())


def _merge(call: Call, seed: int) -> tuple[Part, ...]:
    """Sampled rows, each of which is merged by itself."""
    rows = sample(call.workload.length, checked_rows(call.workload), seed)
    expected = merge_reference.merge(*(array[:, :, :, rows] for array in call.arrays.values()))
    bound = merge_bounds.bound(expected, call.dtype, call.profile)
    index = np.s_[:, :, rows]
    return Part("output", index, expected.output, bound.output), Part("lse", index, expected.lse, bound.lse)


def _packed(call: Call, seed: int) -> tuple[Part, ...]:
    """Sampled rows of sampled sequences, each as if alone: the first, the last, the longest, and others."""
    w, options, given = call.workload, dict(call.keywords), call.arrays
    for name in ("max_seqlen_q", "max_seqlen_k"):
        options.pop(name)
    longest = int(np.argmax([keys for _, keys in w.sequences]))
    chosen = sorted({longest, *map(int, sample(w.batch, min(w.batch, SEQUENCES), seed))})
    parts = []
    for n in chosen:
        start, count, keys = int(given["cu_seqlens_q"][n]), *w.sequences[n]
        if w.kind == "paged":
            k, v = (paged_reference.in_order(given[x], given["block_table"][n], keys) for x in ("k_cache", "v_cache"))
        else:
            k, v = (given[x][start : start + keys] for x in ("k", "v"))
        q = given["q"][start : start + count]
        rows = sample(count, checked_rows(w), seed)
        offset: dict[str, Any] = {"causal_offset": keys - count} if w.is_causal else {}
        q, k, v = (x.swapaxes(0, 1)[None] for x in (q, k, v))
        expected = reference.sdpa(q, k, v, **options, **offset, rows=rows)
        bound = bounds.bound(expected, Options(softcap=options.get("softcap")), call.dtype, call.profile)
        parts.append(Part("output", start + rows, *(x[0].swapaxes(0, 1) for x in (expected.output, bound.output))))
    return tuple(parts)


_EXPECTED = {
    "sdpa": _sdpa,
    "mha": _layer,
    "sublayer": _layer,
    "sdpa_grad": _gradients,
    "mha_grad": _layer_gradients,
    "merge": _merge,
    **dict.fromkeys(PACKED, _packed),
}


class References:
    """Calls with their inputs and expected results, made once for all implementations and process runs."""

    def __init__(self, seed: int = 0) -> None:
        """Begin with nothing; inputs are drawn from ``seed``, as in the worker, and so are rows."""
        self._seed = seed
        self._inputs = CaseStore()  # of one workload and dtype
        self._workload: tuple[Workload, str] | None = None
        self._expected = CaseStore(KEPT)
        self._lock = threading.Lock()  # cells of different processes are opened at the same time

    def call(self, target: Target, workload: Workload, number: int, keep: bool = True) -> Call:
        """The call with the first input set or with a fresh one.  Those of one workload and dtype are kept.

        Without ``keep`` a fresh one is not kept, as many are needed only once.
        """
        with self._lock:
            if self._workload != (workload, target.dtype):
                self._inputs, self._workload = CaseStore(), (workload, target.dtype)
            inputs = self._make(workload, target.dtype, number if keep else FIRST)
            if not keep:
                inputs = arguments.fresh(workload, *inputs, number)
        return Call(workload, *inputs, target.dtype, target.profile, number)

    def expect(self, call: Call, seed: int) -> tuple[Part, ...]:
        """``expect``, computed once; the rows or heads are this run's own, and cannot be known before it."""
        seed += ROW_SEEDS * self._seed
        key = (call.workload, call.dtype, call.profile, call.number, seed)
        with self._lock:
            parts: tuple[Part, ...] = self._expected.get(key, lambda: expect(call, seed))
        return parts

    def _make(self, workload: Workload, dtype: str, number: int) -> Inputs:
        def make() -> Inputs:
            if number == FIRST:
                return arguments.make(workload, dtype, self._seed)
            return arguments.fresh(workload, *self._make(workload, dtype, FIRST), number)

        inputs: Inputs = self._inputs.get(number, make)
        return inputs
