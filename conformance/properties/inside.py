"""Random problems inside an envelope: the nearest sizes that an implementation takes, and calls outside of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attention_conformance.conformance.cases.data import Shape
from attention_conformance.conformance.cases.fit import nearest
from attention_conformance.conformance.cases.packed import PackedShape
from attention_conformance.conformance.properties.problem import Problem
from attention_conformance.conformance.properties.serving import ServingProblem
from attention_conformance.conformance.spec.inputs import Inputs
from attention_conformance.impls.envelope import Envelope, Sizes


def problem_within(problem: Problem | ServingProblem, envelope: Envelope) -> Problem | ServingProblem | None:
    """A problem at the nearest sizes inside an envelope.

    Parameters
    ----------
    problem
        A problem as drawn, at any sizes.
    envelope
        The calls that an implementation takes.

    Returns
    -------
    Problem | ServingProblem | None
        The problem itself where it is inside, None where no such problem is.  Values for each batch are repeated or
        cut; a tree keeps its lengths, since the keys before and behind it are made for them.
    """
    shape = problem.shape
    if envelope.free or not isinstance(shape, (Shape, PackedShape)):
        return problem
    found = nearest(shape, envelope)
    if found is None or found == shape:
        return found and problem
    has_tree = isinstance(problem, ServingProblem) and "tree_parents" in dict(problem.options)
    if has_tree and (found.sq, found.sk) != (shape.sq, shape.sk):
        return None
    if isinstance(problem, Problem):
        lengths, offset = problem.kv_lengths, problem.causal_offset
        return replace(
            problem,
            shape=found,
            kv_lengths=None if lengths is None else _by_batch(lengths, found),
            causal_offset=_by_batch(offset, found) if isinstance(offset, tuple) else offset,
        )
    of_batches = ("kv_lengths", "causal_offset")
    options = tuple(
        (name, _by_batch(value, found) if name in of_batches and isinstance(value, tuple) else value)
        for name, value in problem.options
    )
    return replace(problem, shape=found, options=options)


def _by_batch(numbers: tuple[int, ...], shape: Any) -> tuple[int, ...]:
    return tuple(numbers[at % len(numbers)] for at in range(shape.b))


def is_outside(x: Any, envelope: Envelope) -> bool:
    """Whether an envelope rules out a call: by the shapes of its arrays, or by options that are not taken together.

    Parameters
    ----------
    x
        The inputs of a call, of any operator; those of layers, latents and mergers have no envelope.
    envelope
        The calls that an implementation takes.

    Returns
    -------
    bool
        False where nothing rules the call out.
    """
    if envelope.free:
        return False
    if envelope.apart(x.keywords):
        return True
    if isinstance(x, Inputs):
        (b, hq, sq, d), (_, hkv, sk, _), dv = x.q.shape, x.k.shape, x.v.shape[-1]
        return Shape(b, hq, hkv, sq, sk, d, dv) not in envelope
    cached = "k_cache" in x.arrays
    if not cached and not {"q", "k", "v"} <= set(x.arrays):
        return False
    q, k, v = (x.arrays[name] for name in ("q", *(("k_cache", "v_cache") if cached else ("k", "v"))))
    if q.ndim != 3:
        return False
    packs = replace(envelope, batch_sizes=Sizes())
    heads_or_widths = [
        *packs.heads_outside(1, q.shape[1], k.shape[-2]),
        *packs.widths_outside(q.shape[-1], v.shape[-1]),
    ]
    return bool(heads_or_widths) or (cached and k.shape[1] not in envelope.page_sizes)
