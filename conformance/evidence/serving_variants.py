"""Honest variants of the serving forms, by form, and how they are judged on random problems."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from attention_conformance.conformance.cases.base import AnyCase
from attention_conformance.conformance.evidence.masked_variants import MASKED, Honest
from attention_conformance.conformance.evidence.merge_gradient_variants import BACKWARD
from attention_conformance.conformance.evidence.merge_variants import RIGHT
from attention_conformance.conformance.evidence.packed_variants import PACKED, _allowed, over_pages
from attention_conformance.conformance.faults.models.paged import Paged
from attention_conformance.conformance.faults.models.varlen_gradients import PackedBackward
from attention_conformance.conformance.judging.judge import judge
from attention_conformance.conformance.judging.outcomes import Outcome, Result
from attention_conformance.conformance.properties.serving import FORMS
from attention_conformance.conformance.run_case import request
from attention_conformance.impls.calls import call
from attention_conformance.impls.contract import DTYPES, Implementation, Profile
from attention_conformance.impls.numpy.gradients import gradients
from attention_conformance.impls.numpy.varlen_gradients import varlen_gradients


def masked_gradients(
    q: Any, k: Any, v: Any, grad_output: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, **o: Any
) -> tuple[Any, ...]:
    """Gradients of the whole pack as one sequence under a block-diagonal mask."""
    taken = [o.pop(name, None) for name in ("is_causal", "causal_offset", "window")]
    o = {name: value for name, value in o.items() if not name.startswith("max_")}
    if len(cu_seqlens_q) != len(cu_seqlens_k):
        raise ValueError("boundaries of different lengths")
    mask = np.zeros((len(q), len(k)), bool)
    own = _allowed((np.diff(cu_seqlens_q), np.diff(cu_seqlens_k)), *taken)
    mask[: own.shape[0], : own.shape[1]] = own
    arrays = (array.swapaxes(0, 1)[None] for array in (q, k, v, grad_output))
    return tuple(found[0].swapaxes(0, 1) for found in gradients(*arrays, mask=mask, **o))


def by_sequence(
    q: Any, k: Any, v: Any, grad_output: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, **o: Any
) -> tuple[Any, ...]:
    """Gradients by one call for each sequence."""
    found, offset = [np.zeros_like(array) for array in (q, k, v)], o.pop("causal_offset", None)
    bounds = zip(itertools.pairwise(cu_seqlens_q), itertools.pairwise(cu_seqlens_k), strict=True)
    for n, ((a, b), (c, d)) in enumerate(bounds):
        own = o if offset is None else o | {"causal_offset": int(offset if np.ndim(offset) == 0 else offset[n])}
        ends = np.array([0, b - a], np.int32), np.array([0, d - c], np.int32)
        parts = varlen_gradients(q[a:b], k[c:d], v[c:d], grad_output[a:b], *ends, **own)
        for array, part, at in zip(found, parts, (slice(a, b), slice(c, d), slice(c, d)), strict=True):
            array[at] = part
    return tuple(found)


def without_rest(
    q: Any, k: Any, v: Any, grad_output: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, **o: Any
) -> tuple[Any, ...]:
    """Gradients of a pack without the keys behind the last sequence, and zeros for those."""
    used = int(cu_seqlens_k[-1])
    found = varlen_gradients(q, k[:used], v[:used], grad_output, cu_seqlens_q, cu_seqlens_k, **o)
    rest = (np.concatenate([g, np.zeros_like(a[used:])]) for g, a in zip(found[1:], (k, v), strict=True))
    return (found[0], *rest)


def _packed(name: str) -> dict[str, Profile]:
    profiles = getattr(PACKED[name], "profiles", dict.fromkeys(DTYPES, "wide"))
    return {dtype: Profile(profiles[dtype]) for dtype in getattr(PACKED[name], "dtypes", tuple(DTYPES))}


_WIDE = dict.fromkeys(DTYPES, Profile.WIDE)
_PAGED = {name: Honest(over_pages(function), _packed(name)) for name, function in PACKED.items()}

#: The variants of each form, by name.
SERVING: dict[str, dict[str, Honest]] = {
    "varlen": {name: Honest(function, _packed(name)) for name, function in PACKED.items()},
    "varlen_grad": {
        "loop": Honest(varlen_gradients, _WIDE),
        "masked": Honest(masked_gradients, _WIDE),
        "flash": Honest(PackedBackward(), _WIDE),
        "by_sequence": Honest(by_sequence, _WIDE),
        "without_rest": Honest(without_rest, _WIDE),
    },
    "paged": _PAGED,
    "quantised": {**_PAGED, "within": Honest(Paged(), _WIDE)},
    "merge": {each.__name__: Honest(each, dict.fromkeys(DTYPES, profile)) for each, profile in RIGHT.items()},
    "merge_grad": {each.__name__: Honest(each, dict.fromkeys(DTYPES, profile)) for each, profile in BACKWARD.items()},
    **MASKED,
}


def alarm(form: str, function: Callable[..., Any], case: AnyCase, dtype: str, profile: Profile) -> str:
    """Reason why a function fails a problem of a form; "" where it passes."""
    found = verdict(form, function, case, dtype, profile)
    return "" if found.outcome is Outcome.PASSED else found.reason


def verdict(form: str, function: Callable[..., Any], case: AnyCase, dtype: str, profile: Profile) -> Result:
    """The result of a function on a problem of a form, judged under a profile."""
    operator = FORMS[form]
    blank = Result("variant", "cpu", dtype, case.name, case.clauses, Outcome.PASSED, profile=profile)
    with np.errstate(all="ignore"):
        reply = call(Implementation("variant", "", operator=operator), request(case, dtype, "cpu"), function)
    return judge(reply, case, blank, every_profile=False)
