"""Cases of data for implementations of one shape: each is failed by the mistakes that it is meant to catch."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatch
from typing import Any

import numpy as np
import pytest

from attention_conformance.conformance.cases import Case, cases_named, every_case, one_shape_cases
from attention_conformance.conformance.cases.envelopes import static
from attention_conformance.conformance.cases.fit import fit
from attention_conformance.conformance.judging.judge import judge
from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.conformance.plugin import cases_for
from attention_conformance.conformance.run_case import blank_of
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.calls import Reply
from attention_conformance.impls.envelope import Envelope
from attention_conformance.impls.select import plug_in, with_attributes

Array = np.ndarray
Kernel = Callable[[Array, Array, Array], Array]

#: The shape at which the cases are judged here: more than one head and one tile.
ENVELOPE = static(1, 4, 128, 128)
TILE = 32


def scores(q: Array, k: Array) -> Array:
    """Scaled scores."""
    return q @ k.swapaxes(2, 3) / np.float32(np.sqrt(q.shape[-1]))


def weighted(s: Array, v: Array, top: Array | None = None) -> Array:
    """Softmax of scores, times v; ``top`` replaces a row's own maximum."""
    with np.errstate(all="ignore"):
        w = np.exp(s - (s.max(-1, keepdims=True) if top is None else top))
        return (w / w.sum(-1, keepdims=True)) @ v


def right(q: Array, k: Array, v: Array) -> Array:
    """Attention as the spec defines it."""
    return weighted(scores(q, k), v)


def without_key(key: int) -> Kernel:
    """One key is lost."""

    def kernel(q: Array, k: Array, v: Array) -> Array:
        return right(q, np.delete(k, key, axis=2), np.delete(v, key, axis=2))

    return kernel


def mean_of_few(q: Array, k: Array, v: Array) -> Array:
    """Weights have a floor, so that keys of no weight count."""
    s = scores(q, k)
    w = np.maximum(np.exp(s - s.max(-1, keepdims=True)), 1e-3)
    return (w / w.sum(-1, keepdims=True)) @ v


def shared_maximum(*axes: int) -> Kernel:
    """Several rows share one maximum."""
    return lambda q, k, v: weighted(scores(q, k), v, scores(q, k).max(axes, keepdims=True))


def without_last_row(q: Array, k: Array, v: Array) -> Array:
    """The last row is not written."""
    out = right(q, k, v)
    out[:, :, -1] = 0
    return out


def keys_of_first_head(q: Array, k: Array, v: Array) -> Array:
    """Every head reads the keys of the first."""
    return right(q, np.broadcast_to(k[:, :1], k.shape), v)


def scale_of_used_width(q: Array, k: Array, v: Array) -> Array:
    """The scale is for the number of coordinates that are not zero."""
    used = int((q != 0).any((0, 1, 2)).sum()) or 1
    return right(q * np.float32(np.sqrt(q.shape[-1] / used)), k, v)


def without_last_coordinate(q: Array, k: Array, v: Array) -> Array:
    """The last coordinate of the dot product is lost."""
    return right(np.concatenate([q[..., :-1], 0 * q[..., -1:]], -1), k, v)


def without_last_column(q: Array, k: Array, v: Array) -> Array:
    """The last column of the values is lost."""
    return right(q, k, np.concatenate([v[..., :-1], 0 * v[..., -1:]], -1))


def zero_is_masked(q: Array, k: Array, v: Array) -> Array:
    """A score of exactly 0 is taken for a masked one."""
    s = scores(q, k)
    return weighted(np.where(s == 0, np.float32(-1e30), s), v, np.zeros((), np.float32))


def never_zero(q: Array, k: Array, v: Array) -> Array:
    """A small number is added to the output."""
    return right(q, k, v) + np.float32(1e-6)


def values_between(low: float, high: float) -> Kernel:
    """Values are limited to magnitudes between two numbers."""

    def kernel(q: Array, k: Array, v: Array) -> Array:
        return right(q, k, np.where(np.abs(v) < low, 0, np.clip(v, -high, high)).astype(np.float32))

    return kernel


def weights_in_half(q: Array, k: Array, v: Array) -> Array:
    """Weights are rounded to float16."""
    s = scores(q, k)
    w = np.exp(s - s.max(-1, keepdims=True))
    return (w / w.sum(-1, keepdims=True)).astype(np.float16).astype(np.float32) @ v


def not_rescaled(q: Array, k: Array, v: Array) -> Array:
    """Keys are taken tile by tile, and the sums so far are not rescaled."""
    s = scores(q, k)
    top, total, out = np.full((*s.shape[:3], 1), -np.inf, np.float32), np.zeros((), np.float32), np.zeros_like(q)
    for start in range(0, s.shape[-1], TILE):
        tile = s[..., start : start + TILE]
        top = np.maximum(top, tile.max(-1, keepdims=True))
        w = np.exp(tile - top)
        total, out = total + w.sum(-1, keepdims=True), out + w @ v[:, :, start : start + TILE]
    return out / total


def last_tile(q: Array, k: Array, v: Array) -> Array:
    """Every tile starts from nothing, so that only the last one counts."""
    return right(q, k[:, :, -TILE:], v[:, :, -TILE:])


def nan_to_zero(q: Array, k: Array, v: Array) -> Array:
    """NaN in an input or a score is replaced."""
    return weighted(np.nan_to_num(scores(q, k)), np.nan_to_num(v))


def nan_everywhere(q: Array, k: Array, v: Array) -> Array:
    """One NaN spreads to the whole output."""
    out = right(q, k, v)
    return np.full_like(out, np.nan) if np.isnan(out).any() else out


#: The mistakes that each case is meant to catch.
WRONG: dict[str, tuple[Kernel, ...]] = {
    **{f"data-peak-key-{key}": (without_key(key),) for key in (0, 15, 16, 31, 32, 63, 64)},
    "data-first-*": (mean_of_few, last_tile),
    "data-last-*": (mean_of_few, not_rescaled),
    "data-tie": (without_key(0), without_key(-1)),
    "data-own-key": (without_key(5), without_last_row),
    "data-reversed-keys": (without_key(5), without_last_row),
    "data-equal-rows": (without_last_row,),
    "data-rows-apart": (shared_maximum(2, 3),),
    "data-heads-apart": (shared_maximum(1, 3),),
    "data-heads-differ": (keys_of_first_head,),
    "data-first-coordinate": (scale_of_used_width,),
    "data-last-coordinate": (scale_of_used_width, without_last_coordinate),
    "data-last-value-column": (without_last_column,),
    "data-zero-queries": (zero_is_masked,),
    "data-zero-values": (never_zero,),
    "data-tiny-values": (values_between(1e-20, 1e38), never_zero),
    "data-huge-values": (values_between(0, 1e20),),
    "data-cancelling-values": (weights_in_half,),
    "data-ascending-steeply": (not_rescaled, without_key(-1)),
    "data-descending-steeply": (last_tile, without_key(0)),
    "data-nan-last-query": (nan_to_zero, nan_everywhere),
    "data-nan-first-key": (nan_to_zero,),
    "data-nan-last-value": (nan_to_zero, nan_everywhere),
    "data-nan-one-head": (nan_to_zero, nan_everywhere),
}

#: Cases about the effects of a call: the reply shows them, not the output.
CALLS = {"data-inputs-unchanged", "data-repeat-after-large-scores"}


def outcome(case: Case, kernel: Kernel, **said: Any) -> Outcome:
    """The outcome of a kernel at one shape."""
    inputs = case.inputs("float32")
    reply = Reply("returned", {"output": kernel(*inputs.arrays.values())}, **said)
    target = Target(plug_in("attention_conformance.impls.numpy.eager:attention"), "cpu", "float32")
    return judge(reply, case, blank_of(target, case)).outcome


@pytest.mark.slow(2)
@pytest.mark.parametrize("name", one_shape_cases())
def test_a_case_is_failed_by_the_mistake_that_it_is_for(name: str) -> None:
    """Each case fails for the mistakes that it is meant to catch, and passes for a right function."""
    case = fit(one_shape_cases()[name], ENVELOPE)
    assert outcome(case, right) is Outcome.PASSED
    mistakes = next((wrong for glob, wrong in WRONG.items() if fnmatch(name, glob)), ())
    assert mistakes or name in CALLS
    assert [kernel for kernel in mistakes if outcome(case, kernel) is not Outcome.FAILED] == []


def test_what_a_call_leaves_behind_fails_its_case() -> None:
    """A changed input and results that differ between calls fail their cases."""
    changed, again = (fit(one_shape_cases()[name], ENVELOPE) for name in sorted(CALLS))
    assert outcome(changed, right, modified=("q",)) is Outcome.FAILED
    assert outcome(again, right, unequal=("output",)) is Outcome.FAILED
    assert again.earlier() == fit(every_case()["softmax-shift-plus-1e5"], ENVELOPE)


def test_they_are_asked_of_what_has_one_shape() -> None:
    """The cases run for implementations of one shape, and for others only by name."""
    plugged = plug_in("attention_conformance.impls.numpy.eager:attention")
    sizes = {"batch_sizes": 1, "head_counts": 8, "key_head_counts": 8, "lengths": 128, "head_widths": 64}
    one = with_attributes(plugged, sizes | {"value_widths": 64, "dtypes": ("float32",)})
    assert one.envelope == static(1, 8, 128, 128)
    assert one_shape_cases().keys() <= {case.name for case in cases_for(Target(one, "cpu", "float32"), None)}
    free = {case.name for case in cases_for(Target(plugged, "cpu", "float32"), None)}
    assert not free & one_shape_cases().keys()
    assert {case.name for case in cases_named("data-*")} == one_shape_cases().keys()


def test_a_model_of_one_shape_without_a_mask_is_asked_a_hundred() -> None:
    """At least a hundred cases without options run at (1, 8, 128, 64); cases of other sizes are not applicable."""
    plugged = plug_in("attention_conformance.impls.numpy.eager:attention")
    sizes = {"batch_sizes": 1, "head_counts": 8, "key_head_counts": 8, "lengths": 128, "head_widths": 64}
    one = with_attributes(plugged, sizes | {"value_widths": 64, "dtypes": ("float32",)})
    plain = [case for case in cases_for(Target(one, "cpu", "float32"), None) if not case.keywords and not case.unfit]
    assert len(plain) >= 100
    assert all(case.shape in one.envelope for case in plain)


def test_one_query_is_asked_what_needs_no_rows() -> None:
    """Decoding over 256 keys runs them too, except cases that compare rows, which say that they need some."""
    decoding = static(2, 8, 1, 256)
    unfit = {name for name, case in one_shape_cases().items() if fit(case, decoding).unfit}
    assert unfit == {"data-rows-apart", "data-own-key", "data-reversed-keys", "data-equal-rows"}
    assert not any(fit(case, Envelope()).fitted for case in one_shape_cases().values())
