"""Cases of a user's own call: existing arrays, or a part of them, judged as the suite's own cases are.

Long calls are judged in part, each part exactly: for sdpa and latent sampled query rows of every head, which depend on
no other row; for sdpa's gradients sampled key heads with their query heads and all rows, as a row of grad_k is a sum
over all query rows; for packed sequences and paged caches sampled rows of the pack, each with its own sequence.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from attention_conformance.conformance.bounds import latent as latent_bounds
from attention_conformance.conformance.bounds import sdpa as bounds
from attention_conformance.conformance.bounds.sdpa import Options
from attention_conformance.conformance.bounds.varlen import dequantised
from attention_conformance.conformance.cases.base import AnyCase, Blame, Case
from attention_conformance.conformance.cases.gradient import GradientCase
from attention_conformance.conformance.cases.latent import LatentCase
from attention_conformance.conformance.cases.layer import MhaCase, SublayerCase
from attention_conformance.conformance.cases.merge import MergeCase
from attention_conformance.conformance.cases.mha_gradient import MhaGradientCase
from attention_conformance.conformance.cases.packed import PackedCase, PagedCase
from attention_conformance.conformance.cases.parts import part_of
from attention_conformance.conformance.cases.store import CaseStore
from attention_conformance.conformance.spec import latent as latent_reference
from attention_conformance.conformance.spec import sdpa as reference
from attention_conformance.impls.contract import Profile

#: Elements of keys of the heads that are computed at once: a row's distances to all values, which the bound needs in
#: float64, then stay in a near cache.  For 2 × 16 × 1024 × 1024 scores 2²² took 2.4 s of processor time, this 0.9 s.
KEYS_AT_ONCE = 2**17

#: Scores that are computed at once.
SCORES_AT_ONCE = 2**19

_numbers = itertools.count()


@dataclass(frozen=True)
class _Given(AnyCase):
    """Base of given cases: ``held`` are the inputs, ``names`` the returned results; the rest is how they are shown."""

    held: Any = field(default=None, repr=False, compare=False)
    names: tuple[str, ...] = ()
    #: Number of leading axes that the caller's arrays lack, and whether heads come after the sequence.
    dropped: int = 0
    heads_inside: bool = False

    def make_inputs(self, dtype: str) -> Any:
        """The inputs that were given."""
        return self.held

    def results(self) -> tuple[str, ...]:
        """Names of the returned results, in order."""
        return self.names

    def axes(self, result: str) -> tuple[str, ...]:
        """Names of the axes of a result as the caller has it."""
        return self._shown_axes(result, super().axes(result))  # type: ignore[safe-super]  # of the case beside it

    def _shown_axes(self, result: str, axes: tuple[Any, ...]) -> tuple[Any, ...]:
        if not axes or self.operator not in ("sdpa", "sdpa_grad", "merge", "latent") or result == "grad_bias":
            return axes
        if self.dropped == 2:
            return axes[2:]
        inside = self.heads_inside and result not in ("weights", "lse")
        axes = (axes[0], axes[2], axes[1], *axes[3:]) if inside else axes
        return axes[self.dropped :]

    def located(self, comparison: Any) -> Any:
        """A comparison in the axes that the caller's arrays have."""
        shape = comparison.whole or comparison.outside.shape
        name = comparison.name
        return replace(
            comparison,
            index=self._shown_axes(name, comparison.index),
            where=self._shown_axes(name, comparison.where),
            whole=self._shown_axes(name, comparison.whole),
            outside=np.broadcast_to(False, self._shown_axes(name, shape)),
        )

    def __hash__(self) -> int:
        return hash(self.name)


@dataclass(frozen=True)
class GivenSdpa(_Given, Case):
    """A call of sdpa, all of it."""

    __hash__ = _Given.__hash__


@dataclass(frozen=True)
class GivenGradients(_Given, GradientCase):
    """A call of sdpa_grad, all of it; each gradient has its own clause, as the call's purpose is unknown."""

    blame: ClassVar[Blame] = replace(
        GradientCase.blame,
        of_result={"grad_q": "GRAD-4", "grad_k": "GRAD-4", "grad_v": "GRAD-2", "grad_bias": "GRAD-5"},
    )
    __hash__ = _Given.__hash__


@dataclass(frozen=True)
class GivenMha(_Given, MhaCase):
    """A call of mha."""

    __hash__ = _Given.__hash__


@dataclass(frozen=True)
class GivenSublayer(_Given, SublayerCase):
    """A call of sublayer."""

    __hash__ = _Given.__hash__


@dataclass(frozen=True)
class GivenMhaGradients(_Given, MhaGradientCase):
    """A call of mha_grad."""

    __hash__ = _Given.__hash__


@dataclass(frozen=True)
class GivenRows(GivenSdpa):
    """Query rows of a call of sdpa; its results are those rows of the returned results.

    ``expected`` and ``bound`` are computed a few heads at a time, as rows do not depend on other heads.
    """

    rows: tuple[int, ...] = ()
    whole: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    #: Whether keys and values are dequantised from a cache with scales.
    quantised: bool = False

    __hash__ = _Given.__hash__

    def expected(self, dtype: str) -> Any:
        """Results of the reference for the rows, and v as its mean, for recognising error patterns."""
        return self.store.get(("rows", Profile.WIDE), lambda: self._computed(dtype, None))

    def bound(self, dtype: str, profile: Profile) -> Any:
        """The error bound of the rows."""
        return self.store.get(("rows bound", profile), lambda: self._computed(dtype, profile))

    def located(self, comparison: Any) -> Any:
        """A comparison with the indices of the whole result."""
        if comparison.name in ("present_key", "present_value"):
            return super().located(comparison)
        return super().located(_of_whole(self, comparison))

    def parts(self) -> Iterator[tuple[Any, Any, tuple[slice, slice, slice]]]:
        """References of a few key heads of a batch at a time, their options, and their batch, query heads and rows."""
        q, k, v = (self.held.arrays[name] for name in ("q", "k", "v"))
        keywords = {n: x for n, x in self.held.keywords.items() if not n.startswith("return_")}
        past = keywords.get("past_key")
        keys = k.shape[2] + (0 if past is None else past.shape[2])
        group = q.shape[1] // k.shape[1]
        rows = np.asarray(self.rows, np.int64)
        wide = max(q.shape[3], v.shape[3], 1)
        step = max(1, min(KEYS_AT_ONCE // (keys * wide * group + 1), k.shape[1]))
        block = max(1, SCORES_AT_ONCE // (step * group * keys + 1))
        for b in range(q.shape[0]):
            for first in range(0, k.shape[1], step):
                heads, queries = slice(first, first + step), slice(first * group, (first + step) * group)
                options = {n: part_of(n, x, slice(b, b + 1), heads, queries) for n, x in keywords.items()}
                for start in range(0, max(len(rows), 1), block):
                    taken = slice(start, start + block)
                    found = reference.sdpa(
                        q[b : b + 1, queries], k[b : b + 1, heads], v[b : b + 1, heads], **options, rows=rows[taken]
                    )
                    yield found, options, (slice(b, b + 1), queries, taken)

    def _computed(self, dtype: str, profile: Profile | None) -> Any:
        """Results without a profile, else bounds."""
        q, k, v = (self.held.arrays[name] for name in ("q", "k", "v"))
        b, hq = q.shape[:2]
        found: dict[str, np.ndarray] = {}
        for name in set(self.names) & {"output", "weights", "lse"}:
            found[name] = np.zeros((b, hq, len(self.rows), *self.whole[name][3:]))
        mean = np.zeros((b, hq, 1 if k.shape[2] else 0, v.shape[3]))
        for expected, options, (batch, heads, rows) in self.parts():
            source = expected
            if profile is not None:
                off = dequantised(expected, dtype, profile) if self.quantised else None
                source = bounds.bound(expected, Options.of(options), dtype, profile, off)
            for name, array in found.items():
                array[batch, heads, rows] = getattr(source, name)
            if profile is None and mean.shape[2]:
                mean[batch, heads] = expected.v.mean(2, keepdims=True)
        for name, new in (("present_key", k), ("present_value", v)):
            if name in self.names:
                joined = np.concatenate([self.held.keywords[name.replace("present", "past")], new], 2)
                found[name] = joined.astype(np.float64) if profile is None else np.zeros(joined.shape)
        return SimpleNamespace(**found, v=mean)


@dataclass(frozen=True)
class GivenHeads(GivenGradients):
    """Some key heads, with their query heads, of a call of sdpa_grad; ``held`` has only those."""

    #: Indices of the key heads and of the query heads, and the shapes of the whole gradients.
    kept: tuple[int, ...] = ()
    queries: tuple[int, ...] = ()
    whole: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    __hash__ = _Given.__hash__

    def located(self, comparison: Any) -> Any:
        """A comparison with the indices of the whole gradient."""
        if not comparison.index or len(self.whole[comparison.name]) < 4:
            return super().located(comparison)
        names = self.kept if comparison.name in ("grad_k", "grad_v") else self.queries
        at, where = list(comparison.index), list(comparison.where)
        if self.whole[comparison.name][1] > 1:
            at[1] = names[at[1]]
            where[1] = tuple(names[i] for i in where[1])
        moved = replace(comparison, index=tuple(at), where=tuple(where), whole=self.whole[comparison.name])
        return super().located(moved)


@dataclass(frozen=True)
class GivenMerge(_Given, MergeCase):
    """A call of merge."""

    __hash__ = _Given.__hash__


@dataclass(frozen=True)
class GivenLatent(_Given, LatentCase):
    """Query rows of a call of latent; its results are those rows of the returned results.

    ``expected`` and ``bound`` are computed head by head: at the widths in use their arrays are large.
    """

    rows: tuple[int, ...] = ()
    whole: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    __hash__ = _Given.__hash__

    def expected(self, dtype: str) -> Any:
        """Results of the reference for the rows."""
        return self.store.get(("rows", Profile.WIDE), lambda: self._computed(dtype, None))

    def bound(self, dtype: str, profile: Profile) -> Any:
        """The error bound of the rows."""
        return self.store.get(("rows bound", profile), lambda: self._computed(dtype, profile))

    def located(self, comparison: Any) -> Any:
        """A comparison with the indices of the whole result."""
        return super().located(_of_whole(self, comparison))

    def _computed(self, dtype: str, profile: Profile | None) -> Any:
        """Results without a profile, else bounds."""
        x = self.held
        keywords = {n: value for n, value in x.keywords.items() if n != "return_lse"}
        shape = (*x.q.shape[:2], len(self.rows))
        found = {"output": np.zeros((*shape, x.w_uv.shape[2])), "lse": np.zeros(shape)}
        for b, h in np.ndindex(*shape[:2]):
            batch, head = slice(b, b + 1), slice(h, h + 1)
            options = {n: part_of(n, value, batch) for n, value in keywords.items()}
            queries = (x.q[batch, head], x.q_rope[batch, head])
            cache = (x.latents[batch], x.k_rope[batch])
            rows = np.array(self.rows, np.int64)
            source: Any = latent_reference.latent(*queries, *cache, x.w_uk[head], x.w_uv[head], **options, rows=rows)
            if profile is not None:
                source = latent_bounds.bound(source, Options.of(options), dtype, profile)
            for name, array in found.items():
                array[b, h] = getattr(source, name)[0, 0]
        return SimpleNamespace(**found)


@dataclass(frozen=True)
class GivenVarlen(_Given, PackedCase):
    """A call of varlen: all of it, or with ``sequences`` some rows of the pack, each with its own sequence."""

    #: The sequences of the rows: as rows of sdpa, with their indices in the pack.
    sequences: tuple[tuple[GivenRows, tuple[int, ...]], ...] = ()
    whole: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    __hash__ = _Given.__hash__

    @property
    def rows(self) -> tuple[int, ...]:
        """The rows of the pack that are compared, in order."""
        return tuple(row for _, rows in self.sequences for row in rows)

    def expected(self, dtype: str) -> Any:
        """Results of the reference for the rows, or for all."""
        return (
            self._joined([one.expected(dtype) for one, _ in self.sequences]) if self.whole else super().expected(dtype)
        )

    def bound(self, dtype: str, profile: Profile) -> Any:
        """The error bound of the rows, or of all."""
        if not self.whole:
            return super().bound(dtype, profile)
        return self._joined([one.bound(dtype, profile) for one, _ in self.sequences])

    def _joined(self, found: list[Any]) -> Any:
        """Results of batches of one, joined in the layout of a pack."""
        outputs = [np.zeros((0, *self.whole["output"][1:])), *(each.output[0].swapaxes(0, 1) for each in found)]
        lses = [np.zeros((self.whole["lse"][0], 0)), *(each.lse[0] for each in found if "lse" in self.names)]
        return SimpleNamespace(output=np.concatenate(outputs), lse=np.concatenate(lses, 1))

    def located(self, comparison: Any) -> Any:
        """A comparison with the rows of the whole pack."""
        name = comparison.name
        if not self.whole or not comparison.index:
            return comparison
        axis, at, where = self.axes(name).index("row"), list(comparison.index), list(comparison.where)
        at[axis] = self.rows[at[axis]]
        where[axis] = tuple(self.rows[i] for i in where[axis])
        whole = self.whole[name] if len(self.rows) < self.whole[name][axis] else ()
        return replace(comparison, index=tuple(at), where=tuple(where), whole=whole)


@dataclass(frozen=True)
class GivenPaged(GivenVarlen, PagedCase):
    """A call of paged, all of it or some rows of the pack."""

    __hash__ = _Given.__hash__


def _of_whole(case: GivenRows | GivenLatent, comparison: Any) -> Any:
    """A comparison of some rows with the indices of the whole result, (B, H, S, …)."""
    if not comparison.index:
        return comparison
    at, where = list(comparison.index), list(comparison.where)
    at[2] = case.rows[at[2]]
    where[2] = tuple(case.rows[i] for i in where[2])
    whole = case.whole[comparison.name] if len(case.rows) < case.shape.sq else ()
    return replace(comparison, index=tuple(at), where=tuple(where), whole=whole)


def given(kind: type[_Given], inputs: Any, clause: str, shape: Any, dtype: str, **rest: Any) -> Any:
    """A case of existing inputs, with a unique name; what is computed for it is released with it.

    Parameters
    ----------
    kind
        The operator's class of given cases.
    inputs
        Inputs of that operator, whose keywords that are not None become the case's options.
    clause
        Clause that its results are judged by.
    shape
        Shape of the inputs, as the operator describes shapes.
    dtype
        Dtype of the inputs, by name.
    rest
        Other fields of the class.

    Returns
    -------
    Any
        A case of ``kind`` in one dtype, with a store of its own.
    """
    name = f"given-{next(_numbers)}"
    options = {n: value for n, value in inputs.keywords.items() if value is not None}
    return kind(
        name,
        (clause,),
        "",
        shape,
        options=options,
        dtypes=(dtype,),
        store=CaseStore(),
        held=inputs,
        **rest,
    )
