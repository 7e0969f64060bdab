"""What every written-out multi-head layer has to refuse, for arrays of any framework.

As in ``impls.validate``, only ``.ndim``, ``.shape`` and ``.dtype`` are read.  Masks and biases of scores are checked
there, once the heads are split.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

#: Projection weights are y = x @ w + b, so the rows of a weight are its inputs.
_AXES: dict[str, tuple[str, ...]] = {
    "w_q": ("E", "H·D"),
    "w_k": ("Ekv", "H·D"),
    "w_v": ("Ekv", "H·Dv"),
    "w_o": ("H·Dv", "Eo"),
    "b_q": ("H·D",),
    "b_k": ("H·D",),
    "b_v": ("H·Dv",),
    "b_o": ("Eo",),
    "gamma": ("E",),
    "beta": ("E",),
}

#: Ranks of x_q and x_kv: unbatched and batched.
_RANKS = (2, 3)


def check_layer(heads: int, x_q: Any, x_kv: Any = None, **arrays: Any) -> None:
    """Refuse what does not fit together; ``arrays`` are weights, biases, gamma and beta by name, None for absent.

    ``x_q`` is (B, Sq, E), (Sq, B, E) or (Sq, E), and ``x_kv`` alike; None is self-attention.  With ``gamma`` there is a
    residual connection, so the output has to be as wide as the input.  Raises ValueError for a shape or for
    heads that do not divide the width, TypeError for a dtype.
    """
    x_kv = x_q if x_kv is None else x_kv
    if x_q.ndim not in _RANKS or x_kv.ndim != x_q.ndim:
        raise ValueError(f"x_q and x_kv must have rank 3, or both rank 2, got ranks {x_q.ndim} and {x_kv.ndim}")
    given = {name: array for name, array in arrays.items() if array is not None}
    if "b_o" in given and "w_o" not in given:
        raise ValueError("b_o is the bias of w_o, which is not given")
    widths = {"E": x_q.shape[-1], "Ekv": x_kv.shape[-1]}
    for name, array in given.items():
        _check_shape(name, tuple(array.shape), widths)
    for name, array in {"x_kv": x_kv, **given}.items():
        if array.dtype != x_q.dtype:
            raise TypeError(f"{name} must have the dtype of x_q, {x_q.dtype}, got {array.dtype}")
    for axis in ("H·D", "H·Dv"):
        if heads < 1 or widths[axis] % heads:
            raise ValueError(f"heads must divide the width {axis} of the projections, {widths[axis]}, got {heads}")
    width = widths.get("Eo", widths["H·Dv"])
    if "gamma" in given and width != widths["E"]:
        raise ValueError(f"the residual connection needs an output as wide as x_q, {widths['E']}, got {width}")


def _check_shape(name: str, shape: Sequence[int], widths: dict[str, int]) -> None:
    """The width of each axis is what an earlier array said, or is noted for the later ones."""
    axes = _AXES[name]
    if len(shape) != len(axes):
        raise ValueError(f"{name} must be ({', '.join(axes)}), got shape {tuple(shape)}")
    for axis, width in zip(axes, shape, strict=True):
        if widths.setdefault(axis, width) != width:
            raise ValueError(
                f"{name} must be ({', '.join(axes)}) with {axis} = {widths[axis]}, got shape {tuple(shape)}"
            )
