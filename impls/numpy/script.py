"""Scripts in NumPy: arrays unchanged, and the written-out implementations by their source."""

from __future__ import annotations

from collections.abc import Sequence

from attention_conformance.impls.memory_layouts import GUARD
from attention_conformance.impls.numpy import IMPLEMENTATIONS
from attention_conformance.impls.script import CARRIED, Given, Terms, Writer, assigned, by_source


def put(arrays: Sequence[Given], memory: str, device: str) -> list[str]:
    """Arrays in their dtype, through ``ml_dtypes`` where NumPy lacks it, and then their layout in memory."""
    others = [each for each in arrays if each.dtype in CARRIED]
    lines = assigned(others, lambda each: f"a.astype(ml_dtypes.{each.dtype})")
    return lines + assigned(arrays, lambda each: _layout(each, memory))


def _layout(array: Given, memory: str) -> str:
    """Expression that lays the array ``a`` out as ``impls.memory_layouts`` does; "" where nothing changes."""
    garbage = "np.nan" if array.floating else "1"
    if memory == "transposed" and len(array.shape) == 4:
        return "np.ascontiguousarray(a.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)"
    if memory == "inner" and len(array.shape) >= 2:
        return "np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2)"
    if memory == "sliced":
        return f"np.stack([a, np.full_like(a, {garbage})], axis=-1)[..., 0]"
    if memory == "expanded" and array.repeated:
        return f"np.broadcast_to(a{first_entries(array)}.copy(), a.shape)"
    if memory == "guarded":
        return f"np.pad(a.ravel(), {GUARD}, constant_values={garbage})[{GUARD}:-{GUARD}].reshape(a.shape)"
    return ""


def first_entries(array: Given) -> str:
    """The index of the part that an expanded array repeats: ``[:, :, :1]``."""
    axes = (":1" if axis in array.repeated else ":" for axis in range(max(array.repeated) + 1))
    return f"[{', '.join(axes)}]"


TERMS = Terms(
    imports=("import numpy as np",),
    array="(np.ndarray, np.generic)",
    put=put,
    content="a.tobytes()",
)


CALLS: dict[str, Writer] = {one.name: by_source(one.target, TERMS) for one in IMPLEMENTATIONS}
