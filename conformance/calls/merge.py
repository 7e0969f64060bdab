"""Call of merge as a question."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.conformance.calls.arrays import Form, array_of, dtype_of, layout_of, profile_of
from attention_conformance.conformance.calls.question import Part, Question
from attention_conformance.conformance.cases.given import GivenMerge, given
from attention_conformance.conformance.cases.merge import sizes
from attention_conformance.conformance.spec.inputs import MergeInputs
from attention_conformance.impls.calls import Reply
from attention_conformance.impls.contract import Layout, Profile


def merge(
    output: Any, outputs: Any, lses: Any, lse: Any, layout: Layout | str, profile: Profile | str | None
) -> Question:
    """A call of merge."""
    parts = {
        name: [array_of(name, each) for each in given_parts] if isinstance(given_parts, list | tuple)
        else list(array_of(name, given_parts))
        for name, given_parts in (("outputs", outputs), ("lses", lses))
    }  # fmt: skip
    if not parts["outputs"] or len(parts["outputs"]) != len(parts["lses"]):
        raise ValueError(
            f"got {len(parts['outputs'])} outputs and {len(parts['lses'])} lses; expected as many of each, at least one"
        )
    form = Form(layout_of(layout), 4 - parts["outputs"][0].ndim)
    dtype = dtype_of({f"outputs[{at}]": each for at, each in enumerate(parts["outputs"])})
    for each in parts["lses"]:
        if str(each.dtype) not in ("float32", "float64"):
            raise TypeError(f"lses are {each.dtype}; expected float32 or float64")
    if len({(a.shape, b.shape) for a, b in zip(parts["outputs"], parts["lses"], strict=True)}) > 1:
        raise ValueError("the parts differ in shape")
    states = np.stack([form.four("outputs", each) for each in parts["outputs"]])
    logs = np.stack([form.result("lse", each) for each in parts["lses"]])
    inputs = MergeInputs(states, logs)
    used = states[~np.isneginf(logs)] if logs.shape == states.shape[:-1] else states
    if np.isposinf(logs).any() or not np.isfinite(used).all():
        raise ValueError("lses have +inf, or outputs NaN or infinities beside them; MERGE-16 leaves the result open")
    results = {"output": output} | ({} if lse is None else {"lse": lse})
    came = {name: form.result(name, array_of(name, array)) for name, array in results.items()}
    (count, b, h, s, dv), axes = states.shape, {"dropped": form.dropped, "heads_inside": form.layout is Layout.BSHD}
    case = given(GivenMerge, inputs, "MERGE-2", sizes(b, h, s, dv, count), dtype, names=tuple(came), **axes)
    case.expected(dtype)  # raises InvalidInput, a ValueError, for arguments that do not fit together
    return Question((Part(case, Reply("returned", came)),), dtype, profile_of(profile, dtype))
