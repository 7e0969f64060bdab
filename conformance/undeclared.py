"""What works without being declared: other dtypes, and keywords under other names.  A hint each.

Grouped heads, strides and invalid inputs are not declared at all, so they are judged of every implementation, and a
function with ``**kwargs`` is judged on all keywords.
"""

from __future__ import annotations

from collections.abc import Collection

from conformance.adapter import FIRST, probe, right, wider
from conformance.cases.base import case as sdpa_case
from conformance.cases.data import random_bias, random_mask
from conformance.targets import Target
from impls.contract import DTYPES
from impls.operators import SDPA
from impls.process.pool import Crashed, Pool, TimedOut

#: Names of parameters in other libraries, and the keywords that they may stand for, the first that fits.
NAMES = {
    "attn_mask": ("mask", "bias"),  # torch
    "attention_mask": ("mask", "bias"),  # transformers, keras layers
    "attn_bias": ("bias", "mask"),  # xformers
    "attention_bias": ("bias", "mask"),
    "causal": ("is_causal",),  # flash-attn
    "use_causal_mask": ("is_causal",),  # keras layers
    "softmax_scale": ("scale",),  # flash-attn
    "sm_scale": ("scale",),  # flashinfer, triton's tutorial
    "scaling": ("scale",),  # transformers
    "soft_cap": ("softcap",),
    "logits_soft_cap": ("softcap",),  # flashinfer
    "attn_logits_soft_cap": ("softcap",),  # keras
}

#: Values of keywords that show in the output.  One key in ten is masked, so that no row is without any.
OPTIONS = {
    "mask": random_mask(0.9),
    "bias": random_bias(),
    "is_causal": True,
    "scale": 0.3,
    "softcap": 0.5,
}


def dtypes(target: Target, pool: Pool, timeout: float) -> list[str]:
    """The dtypes that an implementation of sdpa does not declare, and computes a tiny input right in."""
    implementation = target.implementation
    if implementation.operator != SDPA.name:
        return []
    found = []
    for dtype in (dtype for dtype in DTYPES if dtype not in implementation.dtypes):
        other = Target(implementation, target.device, dtype)
        returned = probe(other, FIRST, pool, timeout)
        if returned is not None and right(returned, FIRST, other) and not wider(returned, other):
            found.append(dtype)
    return found


def keywords(target: Target, declared: Collection[str], pool: Pool, timeout: float) -> list[tuple[str, str]]:
    """Parameters of a function of sdpa and the keywords that they compute right for, a tiny input shows it."""
    implementation = target.implementation
    if implementation.operator != SDPA.name or implementation.source or implementation.function_of:
        return []
    try:
        parameters = pool.call(implementation, "impls.probe:others", implementation, timeout=timeout)
    except (Crashed, TimedOut):
        return []
    found = []
    for name in (name for name in parameters if name in NAMES):
        fits = (k for k in NAMES[name] if k not in declared and _computes(target, k, name, pool, timeout))
        found += [(name, keyword) for keyword in (next(fits, None),) if keyword]
    return found


def _computes(target: Target, keyword: str, name: str, pool: Pool, timeout: float) -> bool:
    """Whether a parameter does on a tiny input what a keyword is to do."""
    case = sdpa_case(f"adapter-{keyword}", "SDPA-1", FIRST.why, FIRST.shape, **{keyword: OPTIONS[keyword]})
    returned = probe(target, case, pool, timeout, {keyword: name})
    return returned is not None and right(returned, case, target)
