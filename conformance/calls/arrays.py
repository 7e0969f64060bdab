"""Arrays of a caller, of any framework and layout: converted to the form of the spec, or refused in one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from attention_conformance.conformance.spec import sdpa as reference
from attention_conformance.impls.backend import to_numpy
from attention_conformance.impls.contract import DTYPES, Implementation, Layout, Profile, checked_profile


class HasArray(Protocol):
    """An array that NumPy can read."""

    def __array__(self, *arguments: Any, **options: Any) -> Any: ...


class HasDlpack(Protocol):
    """An array that DLPack exports."""

    def __dlpack__(self, *arguments: Any, **options: Any) -> Any: ...


#: An array of any framework, on any device.
Array: TypeAlias = HasArray | HasDlpack

#: Whole numbers, as an array of them or as Python's.
WholeNumbers: TypeAlias = Array | int | Sequence[int]

#: A number, which may be an array without axes.
Number: TypeAlias = Array | float

#: Keys to the left and to the right of a query's own, None for an open side.
Window: TypeAlias = tuple[int | None, int | None]

#: Arguments that hold whole numbers, and may be lists.
WHOLE_NUMBERS = ("causal_offset", "kv_lengths", "cu_seqlens_q", "cu_seqlens_k", "block_table", "tree_parents")

#: Options that are finite: the spec gives NaN and infinities no meaning there.
_FINITE = ("scale", "softcap", "epsilon", "alibi_slopes", "head_scale", "rotary_cos", "rotary_sin")

_PLAIN = Implementation("given", "given:none")


@dataclass(frozen=True)
class Form:
    """The axes of the caller's arrays, and how they become (B, H, S, D)."""

    layout: Layout
    dropped: int

    def four(self, name: str, array: np.ndarray) -> np.ndarray:
        """An argument with four axes."""
        if not 0 <= self.dropped <= 2 or array.ndim != 4 - self.dropped:
            raise ValueError(f"{name} has shape {array.shape}; q, k and v have 4 axes, or all 3, or all 2")
        if self.dropped == 2:
            return array[None, None]
        array = array[None] if self.dropped else array
        return array.transpose(0, 2, 1, 3) if self.layout is Layout.BSHD else array

    def result(self, name: str, array: np.ndarray) -> np.ndarray:
        """A result with all its axes; one of another rank is unchanged, and then has a wrong shape."""
        if name == "grad_bias":
            return array
        if array.ndim != (3 if name == "lse" else 4) - self.dropped:
            return array
        array = array[(None,) * self.dropped]
        inside = self.layout is Layout.BSHD and self.dropped < 2 and name not in ("weights", "lse")
        return array.transpose(0, 2, 1, 3) if inside else array


def array_of(name: str, array: Any) -> np.ndarray:
    """An argument as a NumPy array.  Raises TypeError, with its name, for anything that is not an array."""
    if name in WHOLE_NUMBERS and isinstance(array, int | list | tuple):
        array = np.asarray(array)
    try:
        return to_numpy(array)
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None


def pair_of(name: str, pair: Any) -> tuple[Any, ...]:
    """A keyword that is a pair.  Raises TypeError, with its name, for a single number."""
    try:
        return tuple(pair)
    except TypeError:
        raise TypeError(f"{name} is {pair!r}; expected a pair") from None


def layout_of(layout: Layout | str) -> Layout:
    """The layout with a name.  Raises ValueError."""
    try:
        return Layout(str(layout).upper())
    except ValueError:
        raise ValueError(f"layout is {layout!r}; expected 'bhsd' or 'bshd'") from None


def profile_of(profile: Profile | str | None, dtype: str) -> Profile:
    """The profile with a name, which the dtype must have; for None, an ordinary plug-in's.  Raises ValueError."""
    return _PLAIN.profile(dtype) if profile is None else checked_profile(profile, dtype)


def dtype_of(arrays: Mapping[str, np.ndarray]) -> str:
    """The common dtype of all arrays.  Raises TypeError for several dtypes, or one without bounds."""
    found = {name: str(array.dtype) for name, array in arrays.items()}
    for name, dtype in found.items():
        if dtype not in DTYPES:
            raise TypeError(f"{name} is {dtype}; there are bounds for {', '.join(DTYPES)}")
    if len(set(found.values())) > 1:
        raise TypeError("the inputs must have one dtype: " + ", ".join(f"{n} is {d}" for n, d in found.items()))
    return next(iter(found.values()))


def check_options(keywords: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Refuse options that the spec gives no meaning to (SDPA-37), and likely slips."""
    for name in ("mask", "bias", "sinks", "alibi_slopes", "head_scale", "rotary_cos", "rotary_sin", "block_mask"):
        if name in keywords:
            boolean, floating = keywords[name].dtype == bool, str(keywords[name].dtype) in DTYPES
            if "mask" in name and not boolean:
                raise TypeError(f"{name} is {keywords[name].dtype}; expected bool; pass values added to scores as bias")
            if "mask" not in name and not floating:
                raise TypeError(f"{name} is {keywords[name].dtype}; expected a floating-point array")
    for name in ("causal_offset", "kv_lengths", "tree_parents"):
        if name in keywords and keywords[name].dtype.kind not in "iu":
            raise TypeError(f"{name} is {keywords[name].dtype}; expected integers")
    for name in (name for name in _FINITE if name in keywords):
        if not np.isfinite(keywords[name]).all():
            one = isinstance(keywords[name], float)
            said = f"is {keywords[name]}; expected a finite number" if one else "has NaN or infinities"
            raise ValueError(f"{name} {said}")
    for name, left in (("sinks", "expected finite numbers or -inf"), ("bias", "SDPA-37 leaves the result open")):
        if name in keywords and (np.isnan(keywords[name]) | np.isposinf(keywords[name])).any():
            raise ValueError(f"{name} has NaN or +inf; {left}")
    batch = arrays["q"].shape[0] if "q" in arrays else None
    for name in ("causal_offset", "kv_lengths"):
        allowed = (1, batch) if name == "causal_offset" else (batch,)
        if name in keywords and batch is not None and keywords[name].size not in allowed:
            raise ValueError(f"{name} has {keywords[name].size} entries, q has batch {batch}")
    if "causal_offset" in keywords and not keywords.keys() & {
        "is_causal",
        "window",
        "tree_parents",
        "alibi_slopes",
        "rotary_cos",
    }:
        raise ValueError("causal_offset shifts is_causal, window, ALiBi, rotary tables and trees, and none is given")
    if not keywords.get("softcap", 1.0) > 0:
        raise ValueError(f"softcap is {keywords['softcap']}; expected above 0, or leave it out")
    parents = keywords.get("tree_parents")
    if parents is not None and not ((parents >= -1) & (parents < np.arange(parents.shape[-1]))).all():
        raise ValueError("tree_parents must be -1 or an earlier row; TREE-4 leaves anything else open")
    if "rotary_interleaved" in keywords and "rotary_cos" not in keywords:
        raise ValueError("rotary_interleaved pairs columns for rotary_cos and rotary_sin, and they are not given")
    sizes = keywords.get("block_size", (1, 1))
    if len(sizes) != 2 or min(sizes) < 1:
        raise ValueError(f"block_size is {sizes}; expected (bq, bk), each 1 or more")
    sides = keywords.get("window", (0, 0))
    if len(sides) != 2 or any(side is not None and side < 0 for side in sides):
        raise ValueError(f"window is {sides}; expected (left, right), each 0 or more, or None for an open side")
    if "kv_lengths" in keywords and batch is not None:
        past = keywords.get("past_key")
        keys = arrays["k"].shape[2] + (0 if past is None else past.shape[2])
        if (
            keywords["kv_lengths"].size
            and not 0 <= keywords["kv_lengths"].min() <= keywords["kv_lengths"].max() <= keys
        ):
            raise ValueError(f"kv_lengths are {keywords['kv_lengths'].tolist()}; there are {keys} keys")


def check_fit(arrays: Mapping[str, np.ndarray], keywords: Mapping[str, Any]) -> None:
    """Refuse arrays that do not fit together, by the checks of the reference, and values that the spec leaves open."""
    k, v = arrays["k"], arrays["v"]
    if keywords.keys() & {"past_key", "past_value"}:
        k, v = reference.joined(k, v, keywords.get("past_key"), keywords.get("past_value"))
    reference.check_inputs(arrays["q"], k, v, keywords.get("mask"), keywords.get("bias"), keywords.get("sinks"))
    reference.check_masks(arrays["q"], k, *(keywords.get(n) for n in ("block_mask", "block_size", "tree_parents")))
    by_place = ("alibi_slopes", "head_scale", "rotary_cos", "rotary_sin")
    reference.check_tables(arrays["q"], *(keywords.get(name) for name in by_place))
    if "rotary_cos" in keywords:
        offset = np.asarray(keywords.get("causal_offset", k.shape[2] - arrays["k"].shape[2]))
        least = min(0, int(offset.min(initial=0)))
        most = max(k.shape[2], arrays["q"].shape[2] + int(offset.max(initial=0)))
        rows = len(keywords["rotary_cos"])
        if least < 0 or most > rows:
            raise ValueError(
                f"rotary_cos has {rows} rows, places go from {least} to {most - 1}; SDPA-44 leaves it open"
            )
    for name, array in (("q", arrays["q"]), ("k", k), ("v", v)):
        if np.isinf(array).any():
            raise ValueError(f"{name} has an infinity; SDPA-37 leaves the result open")
