"""Problems of the gate: cases at the task's sizes, with numbers from an unpredictable seed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.bench.gate import rows
from attention_conformance.conformance.cases import all_cases, kernels
from attention_conformance.conformance.cases.base import Case, case
from attention_conformance.conformance.cases.data import Data, Rng, drawn, normal, pointing
from attention_conformance.conformance.cases.fit import fit
from attention_conformance.conformance.cases.store import CaseStore
from attention_conformance.impls.envelope import Envelope, Shape, Sizes

#: Scores (B, Hq, Sq, Sk) of a task's size above which the suite's own cases are left out.
MOST_SCORES = 1 << 17

#: Problems of a design at the edges of tiles that are run where the task names no sizes.
EDGES = 24

#: No keyword.
NONE: Mapping[str, Any] = {}

#: Bytes of expected results that are kept.
KEPT = 1 << 26


def uniform(rng: Rng, s: Shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers in [0, 1), like KernelBench's own inputs: every answer is near the mean of v."""
    shapes = ((s.b, s.hq, s.sq, s.d), (s.b, s.hkv, s.sk, s.d), (s.b, s.hkv, s.sk, s.dv))
    q, k, v = (rng.random(shape) for shape in shapes)
    return q, k, v


DATA: dict[str, Data] = {
    "normal": normal(1.0),
    "uniform": uniform,
    "pointing": pointing(normal(1.0)),
    "telling": kernels.telling,
    "spread": normal(2.5),
    "shifted": drawn(offset=30.0),
    "outlier": drawn(outlier=8.0),
}


def envelope_of(shape: Shape) -> Envelope:
    """The envelope of a task of one shape."""
    return Envelope(
        batch_sizes=Sizes((shape.b,)),
        head_counts=Sizes((shape.hq,)),
        key_head_counts=Sizes((shape.hkv,)),
        query_lengths=Sizes((shape.sq,)),
        key_lengths=Sizes((shape.sk,)),
        head_widths=Sizes((shape.d,)),
        value_widths=Sizes((shape.dv,)),
        source="declared",
    )


def problems(
    required: Collection[str], shapes: Sequence[Shape], dtype: str, seed: int, always: Mapping[str, Any] = NONE
) -> list[Case]:
    """The problems of a task in a dtype, in an order that the seed decides.

    Parameters
    ----------
    required
        Keywords: a problem needs no others.
    shapes
        Shapes of the task; none for every size.
    always
        Keywords that every problem has.
    """
    rng = np.random.default_rng([seed, 1])
    found = [*_fresh(required, shapes or (Shape(1, 4, 2, 33, 65, 16, 16),), dtype, seed, rng, always)]
    found += _suite(required, shapes, dtype, seed)
    if not shapes:
        options = tuple(n for n, o in kernels.OPTION_SETS.items() if set(o.makers) <= set(required))
        edges = list(kernels.cases_within(seed % 2**31, dtype=(dtype,), option=options, lse=(False,)))
        chosen: Iterable[int] = rng.choice(len(edges), min(EDGES, len(edges)), replace=False) if edges else ()
        found += [_with_suffix(edges[i], f"@{seed:x}") for i in chosen]
    found = [one for one in found if all(one.options.get(n) == value for n, value in always.items())]
    order = rng.permutation(len(found))
    return [found[i] for i in order]


def timed(shape: Shape, dtype: str, seed: int, number: int, always: Mapping[str, Any] = NONE) -> Case:
    """A problem to be timed, with the keywords that every problem has."""
    data = ("normal", "pointing", "uniform")[number % 3]
    return _case(f"timed-{number}-{data}", seed, shape, _at(DATA[data], shape, dtype), dtype, **always)


def _at(data: Data, shape: Shape, dtype: str) -> Data:
    """The data of a size, made batch by batch if it is large."""
    return rows.by_batch(data, dtype) if rows.large(shape) else data


def _case(name: str, seed: int, shape: Shape, data: Data, dtype: str, clauses: str = "SDPA-16", **options: Any) -> Case:
    return case(
        f"{name}@{seed:x}", clauses, "Numbers that nobody foresees.", shape, data=data, dtypes=(dtype,),
        store=CaseStore(KEPT), **options,
    )  # fmt: skip


def _with_suffix(one: Case, text: str) -> Case:
    return replace(one, name=one.name + text, store=CaseStore(KEPT))


def _fresh(
    required: Collection[str], shapes: Sequence[Shape], dtype: str, seed: int, rng: Rng, always: Mapping[str, Any]
) -> Iterator[Case]:
    sets = {n: o for n, o in kernels.OPTION_SETS.items() if o.makers and set(o.makers) <= set(required)}
    for shape in shapes:
        sizes = "x".join(map(str, (shape.b, shape.hq, shape.sq, shape.sk, shape.d)))
        for name, data in DATA.items():
            yield _case(f"{name}-{sizes}", seed, shape, _at(data, shape, dtype), dtype, **always)
        for name in ("normal", "pointing") * (rows.large(shape) and not always):  # causal, equal queries differ
            yield _case(f"repeated-{name}-{sizes}", seed, shape, rows.repeated(DATA[name], seed), dtype)
        for name, options in sets.items():
            for kind in ("telling", "normal"):
                yield _case(
                    f"{name}-{kind}-{sizes}",
                    seed,
                    shape,
                    _at(DATA[kind], shape, dtype),
                    dtype,
                    options.clauses,
                    **options.makers,
                )
        if "scale" in required:
            scale = float(rng.uniform(0.05, 0.6))
            data = _at(DATA["normal"], shape, dtype)
            yield _case(f"scale-{sizes}", seed, shape, data, dtype, "SDPA-3", scale=scale, **always)
        for name in ("q", "k", "v"):
            yield _case(f"another-{name}-{sizes}", seed, shape, _at(_varied(name, seed), shape, dtype), dtype, **always)


def _varied(name: str, seed: int) -> Data:
    """The same numbers each time except in one of q, k and v: an answer cached by the others is wrong."""

    def make(rng: Rng, s: Shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        first, other = normal(1.0)(np.random.default_rng(seed), s), normal(1.0)(rng, s)
        q, k, v = (b if n == name else a for n, a, b in zip("qkv", first, other, strict=True))
        return q, k, v

    return make


def _suite(required: Collection[str], shapes: Sequence[Shape], dtype: str, seed: int) -> Iterator[Case]:
    """The suite's cases with other numbers; only those with valid and finite inputs, as a task's are."""
    able = (c for c in all_cases().values() if c.keywords <= set(required) and not c.after and not c.invalid)
    known = [c for c in able if dtype in c.dtypes and _finite(c, dtype)]
    if not shapes:
        yield from (_with_suffix(c, f"@{seed:x}") for c in known)
    for shape in shapes:
        if shape.b * shape.hq * shape.sq * shape.sk <= MOST_SCORES:
            fitted = (fit(c, envelope_of(shape)) for c in known)
            yield from (_with_suffix(c, f"@{seed:x}") for c in fitted if not c.unfit)


def _finite(one: Case, dtype: str) -> bool:
    return all(np.isfinite(array.astype(np.float64)).all() for array in one.make_inputs(dtype).arrays.values())
