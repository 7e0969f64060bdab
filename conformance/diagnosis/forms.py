"""Forms: mistakes with a number or an option, in every value that libraries use, as candidates for a diagnosis.

A fault of the registry is one mistake that happened; forms are the rest of its kind: each fill for each set of masks,
each end of a window, each offset.  No form equals a fault, as faults are tried before.  Forms have no sources, and are
not in the kill matrix.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import ml_dtypes
import numpy as np

from attention_conformance.conformance.diagnosis.candidates import in_operator
from attention_conformance.conformance.faults.models.gradients import Backward
from attention_conformance.conformance.faults.models.mha import Layer, LayerCall, Sublayer
from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs, Model
from attention_conformance.conformance.faults.models.tiles import TILED, State, Tiled
from attention_conformance.conformance.faults.registry import Fault
from attention_conformance.conformance.faults.sdpa.fills import NoMaximum, Unguarded
from attention_conformance.conformance.faults.sdpa.fully_masked_rows import fully_masked, sinkless
from attention_conformance.conformance.faults.sdpa.online_softmax import (
    FirstTileNan,
    MaskedTileMaximumZero,
    MaximumOverwritten,
    OutputNotRescaled,
    QueryTailNotWritten,
    SmallRisesNotRescaled,
    TailDropped,
    TailOfOneLost,
    TailReadsOn,
    TotalNotRescaled,
)
from attention_conformance.conformance.faults.sdpa.precision import ProductOverflows
from attention_conformance.conformance.spec.mha import Projection
from attention_conformance.conformance.spec.sdpa import Expected

Form = tuple[str, str, str, type[Attention]]

#: A class of models that a form is made from.
M = TypeVar("M", bound=Model)


def _form(base: type[M], **members: Any) -> type[M]:
    """A subclass with these attributes; functions become static methods."""
    own = {name: staticmethod(each) if callable(each) else each for name, each in members.items()}
    return type(base.__name__, (base,), own)


#: Sources of masks in words, by the method that says which keys each allows.
SOURCES = {
    "mask_allows": "masks",
    "bias_allows": "biases of −inf",
    "causal_allows": "causal",
    "window_allows": "windows",
    "lengths_allow": "key lengths",
}


class Fills(Attention):
    """Some masks written as a finite number, the others as −inf."""

    #: The methods of SOURCES whose masks are finite.
    soft: ClassVar[tuple[str, ...]]
    #: The number, and whether it is added to the score.
    value: ClassVar[Callable[[Inputs], float]]
    added_to_score: ClassVar[bool]

    def added(self, x: Inputs, s: Array) -> Array:
        if x.bias is None or "bias_allows" not in self.soft:
            return super().added(x, s)
        bias = self.spread(x, x.bias).astype(x.work)
        fill = x.work(type(self).value(x))
        if self.added_to_score:
            return s + np.where(np.isneginf(bias), fill, bias)
        return np.where(np.isneginf(bias), fill, s + bias)

    def filled(self, x: Inputs, s: Array, allowed: Array) -> Array:
        fill = x.work(type(self).value(x))
        hard = np.ones(x.shape, bool)
        for name in SOURCES:
            allows = getattr(self, name)(x)
            if name not in self.soft:
                hard = hard & allows
            elif name != "bias_allows":
                s = np.where(allows, s, s + fill if self.added_to_score else fill)
        return np.where(hard, s, x.work(-np.inf))


def _smallest(x: Inputs) -> float:
    return float(ml_dtypes.finfo(x.dtype).min)


def _constant(value: float) -> Callable[[Inputs], float]:
    return lambda x: value


def _cast(value: float) -> Callable[[Inputs], float]:
    """A number, or −inf where the storage dtype cannot hold it."""
    return lambda x: -np.inf if abs(value) > float(ml_dtypes.finfo(x.dtype).max) else value


FILLS: dict[str, Callable[[Inputs], float]] = {
    "a finite number far below the scores, such as −1e9": _constant(-1e9),
    "the smallest number of the dtype": _smallest,
    "−1e9, which is −inf in float16": _cast(-1e9),
    "−1e4": _constant(-1e4),
}

#: Sets of masks that one fill is used for.
_SOFT = ("m", "c", "l", "w", "b", "mc", "ml", "mb", "mcl", "mcw", "mclw", "clw", "cl", "cw", "mbl", "mcb", "mclwb")
_LETTER = dict(zip("mbcwl", SOURCES, strict=True))


#: Fills that are faults, without NaN: the masks, the number, and whether it is added.
_KNOWN_FILLS = {
    *(("mclwb", text, False) for text in FILLS if "float16" not in text),
    ("mclw", "−1e4", True),
}


def _fills() -> Iterator[Form]:
    for soft, (text, value), added, nan in itertools.product(_SOFT, FILLS.items(), (False, True), (True, False)):
        if not nan and (soft, text, added) in _KNOWN_FILLS:
            continue
        names = tuple(_LETTER[letter] for letter in soft)
        words = " and ".join(SOURCES[name] for name in names)
        rest = [SOURCES[name] for name in SOURCES if name not in names]
        if nan and not rest:
            continue  # no row is only −inf
        other = f"; −inf for {', '.join(rest)}" if rest else ""
        rows = ", and a row of −inf alone is NaN" if nan and rest else ""
        how = "added to the scores" if added else "written at masked keys"
        make = _form(UnguardedFills if nan else Fills, soft=names, value=value, added_to_score=added)
        yield "form-fill", "SDPA-7", f"{text} {how} for {words}{other}{rows}", make


class UnguardedFills(Unguarded, Fills):
    """A row of only −inf becomes NaN."""


class Addends(UnguardedFills):
    """Masks added as −inf, or as the smallest number, to stored scores: an overflow there is kept.

    A masked score beyond the dtype's largest number is +inf, which −inf makes NaN and no finite number changes.
    """

    added_to_score = True

    #: Whether the product of queries and keys is stored before the scale, so that it overflows earlier.
    product: ClassVar[bool]

    def scores(self, x: Inputs, q: Array, k: Array) -> Array:
        if x.mask is None and (x.bias is None or "bias_allows" not in self.soft):
            return super().scores(x, q, k)
        if not self.product:
            return super().scores(x, q, k).astype(x.dtype).astype(x.work)
        return (q @ k.swapaxes(2, 3)).astype(x.dtype).astype(x.work) * x.work(self.scale(x))

    def filled(self, x: Inputs, s: Array, allowed: Array) -> Array:
        return super().filled(x, s, allowed).astype(x.dtype).astype(x.work)


ADDENDS: dict[str, Callable[[Inputs], float]] = {
    "the smallest number of the dtype added to the scores at masked keys, to no effect where they overflow to +inf": (
        _smallest
    ),
    "−inf added to the scores at masked keys: NaN in fully masked rows, and where the scores overflow to +inf": (
        _constant(-np.inf)
    ),
}


def _addends() -> Iterator[Form]:
    for soft, (text, value), product in itertools.product(("m", "mb"), ADDENDS.items(), (True, False)):
        names = tuple(_LETTER[letter] for letter in soft)
        words = " and ".join(SOURCES[name] for name in names)
        make = _form(Addends, soft=names, value=value, product=product)
        before = " before the scale" if product else ""
        yield "form-addend", "SDPA-7", f"{text}{before} (for {words})", make


class ProductLost(ProductOverflows):
    """Products kept in the storage dtype, where a row of only −inf becomes NaN, like −inf − (−inf)."""

    def powers(self, x: Inputs, s: Array, top: Array) -> Array:
        lost = self.allowed(x).any(axis=3, keepdims=True) & np.isneginf(s).all(axis=3, keepdims=True)
        return np.where(lost, x.work(np.nan), super().powers(x, s, top))


def _products() -> Iterator[Form]:
    title = "q · k kept in the storage dtype before the scale, and a row where all of it is −inf is NaN"
    yield "form-product", "SDPA-26", title, ProductLost


class BiasTimesScores(Attention):
    """The bias multiplied with the scores."""

    def added(self, x: Inputs, s: Array) -> Array:
        return s if x.bias is None else s * self.spread(x, x.bias).astype(x.work)


def _multiplied() -> Iterator[Form]:
    yield "form-bias", "SDPA-6", "the scores are multiplied by the bias, and it is not added", BiasTimesScores


class FromBottomRight(Attention):
    """Causal aligned bottom-right."""

    def default_offset(self, x: Inputs) -> int:
        return x.shape[3] - x.shape[2]


class _MeanWhereEmpty(Attention):
    def normalized(self, x: Inputs, powers: Array, total: Array, allowed: Array) -> Array:
        weights = super().normalized(x, powers, total, allowed)
        return np.where(fully_masked(allowed) & sinkless(x), x.work(1 / max(1, x.shape[3])), weights)


class _NanWhereEmpty(Attention):
    def normalized(self, x: Inputs, powers: Array, total: Array, allowed: Array) -> Array:
        weights = super().normalized(x, powers, total, allowed)
        return np.where(fully_masked(allowed) & sinkless(x), x.work(np.nan), weights)


def _bottom_right() -> Iterator[Form]:
    for words, make in (("the mean of v", _MeanWhereEmpty), ("NaN", _NanWhereEmpty)):
        both = type("Both", (make, FromBottomRight), {})
        yield (
            "form-bottom-right",
            "SDPA-9",
            f"causal aligned bottom-right, and {words} in rows before the first key",
            both,
        )


# Ends of windows, offsets and lengths.


class OtherWindow(Attention):
    """Another window, in calls that give one or in those that give none."""

    ends: ClassVar[Callable[[Inputs], tuple[int | None, int | None]]]

    def window(self, x: Inputs) -> tuple[int | None, int | None]:
        return type(self).ends(x)


def _wider(left: int, right: int) -> Callable[[Inputs], tuple[int | None, int | None]]:
    def ends(x: Inputs) -> tuple[int | None, int | None]:
        a, b = x.window or (None, None)
        return (None if a is None else a + left), (None if b is None else b + right)

    return ends


def _windows() -> Iterator[Form]:
    for left, right in itertools.product(range(-3, 4), repeat=2):
        if (left, right) not in ((0, 0), (1, 0)):  # no change, and a fault
            text = " and ".join(
                f"{abs(n)} key{'s' if abs(n) > 1 else ''} {'more' if n > 0 else 'fewer'} at the {side}"
                for n, side in ((left, "left"), (right, "right"))
                if n
            )
            yield "form-window", "SDPA-11", f"a window has {text}", _window(_wider(left, right))
    for size in range(1, 9):
        for right, words in ((0, "at the left alone"), (size, "at each side")):
            ends = functools.partial(lambda x, e: x.window or e, e=(size, right))
            title = f"a window of {size} keys {words} in calls that give none"
            yield "form-own-window", "SDPA-11", title, _window(ends)


def _window(ends: Callable[[Inputs], tuple[int | None, int | None]]) -> type[Attention]:
    return _form(OtherWindow, ends=ends)


class Allowing(Attention):
    """Keys allowed by an additional rule, or by another rule instead of causal or lengths."""

    rule: ClassVar[Callable[[Attention, Inputs], Array]]
    #: The method that it replaces, "" for an additional rule.
    place: ClassVar[str]

    def causal_allows(self, x: Inputs) -> Array:
        return self._ruled(x, "causal_allows")

    def lengths_allow(self, x: Inputs) -> Array:
        return self._ruled(x, "lengths_allow")

    def mask_allows(self, x: Inputs) -> Array:
        right = super().mask_allows(x)
        return right & np.broadcast_to(type(self).rule(self, x), x.shape) if not self.place else right

    def _ruled(self, x: Inputs, name: str) -> Array:
        given = x.is_causal if name == "causal_allows" else x.kv_lengths is not None
        if self.place == name and given:
            return np.broadcast_to(type(self).rule(self, x), x.shape)
        found: Array = getattr(super(), name)(x)
        return found


def _allowing(place: str, rule: Callable[[Any, Inputs], Array]) -> type[Attention]:
    return _form(Allowing, place=place, rule=rule)


def _rows(x: Inputs) -> Array:
    return np.arange(x.q.shape[2])[:, None]


def _offsets() -> Iterator[Form]:
    def shifted(start: Callable[[Any, Inputs], Any], by: int) -> Callable[[Any, Inputs], Array]:
        return lambda model, x: model.keys(x) <= _rows(x) + start(model, x) + by

    def grouped(rows: int, at: int) -> Callable[[Any, Inputs], Array]:
        return lambda model, x: model.keys(x) <= _rows(x) // rows * rows + at + model.offset(x)

    starts: dict[str, Callable[[Any, Inputs], Any]] = {
        "": lambda model, x: model.offset(x),
        " from the bottom right": lambda model, x: x.shape[3] - x.shape[2],
        " from the bottom right, the offset on top,": lambda model, x: x.shape[3] - x.shape[2] + model.offset(x),
        " from the middle": lambda model, x: (x.shape[3] - x.shape[2]) // 2,
    }
    for (text, start), by in itertools.product(starts.items(), range(-4, 5)):
        if not text and abs(by) <= 1:
            continue  # no change, and two faults
        if by:
            title = (
                f"causal{text} lets a row see {abs(by)} key{'s' if abs(by) > 1 else ''} {'more' if by > 0 else 'fewer'}"
            )
            yield "form-offset", "SDPA-9", title, _allowing("causal_allows", shifted(start, by))
        elif "offset" not in text:  # that one is a fault
            yield "form-offset", "SDPA-9", f"causal counted{text}", _allowing("causal_allows", shifted(start, 0))
    for rows in (2, 4, 8, 16, 32, 64):
        for words, at in (("last", rows - 1), ("first", 0)):
            title = f"one causal mask for every {rows} rows, that of the {words} one"
            rule = _allowing("causal_allows", grouped(rows, at))
            yield "form-causal-rows", "SDPA-9", title, rule
    for by in (0, -1, 1):
        for text, start in list(starts.items())[:2]:
            aligned = ", aligned bottom-right" if text else ""
            title = f"every call is causal{aligned}{f', shifted by {by}' if by else ''}"
            yield "form-always-causal", "SDPA-9", title, _allowing("", shifted(start, by))


def _lengths() -> Iterator[Form]:
    def rule(change: Callable[[Array], Array]) -> Callable[[Any, Inputs], Array]:
        return lambda model, x: model.keys(x) < np.reshape(change(np.asarray(x.kv_lengths)), (-1, 1, 1, 1))

    for by in (-3, -2, 2, 3):
        title = f"{abs(by)} keys {'more' if by > 0 else 'fewer'} than the length"
        yield "form-length", "SDPA-12", title, _allowing("lengths_allow", rule(lambda n, by=by: n + by))  # type: ignore[misc]
    for to in (2, 4, 16, 32, 64, 128):
        title = f"lengths rounded up to a multiple of {to}"
        yield "form-length", "SDPA-12", title, _allowing("lengths_allow", rule(lambda n, to=to: -(-n // to) * to))  # type: ignore[misc]
    titles: dict[str, Callable[[Any, Inputs], Array]] = {
        "key padding at the left: the last keys of each length are allowed": lambda model, x: (
            model.keys(x) >= x.shape[3] - np.reshape(np.asarray(x.kv_lengths), (-1, 1, 1, 1))
        ),
        "key lengths inverted: the padded keys are allowed": lambda model, x: (
            model.keys(x) >= np.reshape(np.asarray(x.kv_lengths), (-1, 1, 1, 1))
        ),
        "key lengths of the batches in reverse": lambda model, x: (
            model.keys(x) < np.reshape(np.asarray(x.kv_lengths)[::-1], (-1, 1, 1, 1))
        ),
        "cumulative key lengths: each is the sum of those up to its batch": lambda model, x: (
            model.keys(x) < np.cumsum(np.asarray(x.kv_lengths)).reshape(-1, 1, 1, 1)
        ),
        "key lengths applied to the rows, not to the keys": lambda model, x: (
            _rows(x) < np.reshape(np.asarray(x.kv_lengths), (-1, 1, 1, 1))
        ),
        "the shortest key length for all batches": lambda model, x: (
            model.keys(x) < np.min(x.kv_lengths, initial=1 << 30)  # type: ignore[arg-type]
        ),
    }
    for title, each in titles.items():
        yield "form-length", "SDPA-12", title, _allowing("lengths_allow", each)


def _further() -> Iterator[Form]:
    """Additional rules, in every call."""
    for block in (2, 4, 8, 16, 32, 64, 128):
        title = f"rows see the keys of their own block of {block} alone"
        yield "form-blocks", "SDPA-7", title, _allowing("", lambda m, x, b=block: m.keys(x) // b == _rows(x) // b)  # type: ignore[misc]
    rules: dict[str, Callable[[Any, Inputs], Array]] = {
        "no row sees the key at its own place": lambda model, x: model.keys(x) != _rows(x),
        "the first key is masked": lambda model, x: model.keys(x) > 0,
        "the last key is masked": lambda model, x: model.keys(x) < x.shape[3] - 1,
        "keys beyond the number of queries are masked": lambda model, x: model.keys(x) < x.shape[2],
        "keys whose vectors are all zero are masked": lambda model, x: np.any(model.heads(x, x.k) != 0, 3)[:, :, None],
    }
    for title, rule in rules.items():
        yield "form-rule", "SDPA-7", title, _allowing("", rule)


class PaddedKeys(Attention):
    """Padding up to a multiple of some number counts as keys, with value 0 and a score of 0 or of −softcap."""

    multiple: ClassVar[int]
    capped_end: ClassVar[bool]

    def sinks(self, x: Inputs) -> Array:
        missing = -x.shape[3] % self.multiple
        if not missing or (self.capped_end and x.softcap is None):
            return super().sinks(x)
        score = -float(x.softcap) if self.capped_end and x.softcap is not None else 0.0
        return np.logaddexp(super().sinks(x), x.work(score + np.log(missing)))


def _padding() -> Iterator[Form]:
    for multiple, capped in itertools.product((2, 4, 8, 16, 32, 64, 128, 256), (False, True)):
        score = "of score −softcap, as −inf is capped too," if capped else "of score 0"
        make = _form(PaddedKeys, multiple=multiple, capped_end=capped)
        title = f"padding behind the last key, up to a multiple of {multiple} keys, counts as keys {score} and value 0"
        yield "form-padding", "SDPA-5" if capped else "SDPA-14", title, make


# Tiles.


class TailAlwaysDropped(TailDropped):
    """Calls with fewer keys than a tile have none left."""

    def first_keys(self, x: Inputs, keys: int) -> list[int]:
        return Tiled.first_keys(self, x, keys)[: x.shape[3] // self.tile]


class RescaledAfter(Tiled):
    """A tile is added before the running state is rescaled, so that it is rescaled too; the first one is lost."""

    #: Whether the running sum, and the running output, are rescaled after.
    late_total: ClassVar[bool]
    late_output: ClassVar[bool]

    def merged(self, x: Inputs, index: int, s: Array, v: Array, state: State) -> State:
        right = super().merged(x, index, s, v, state)
        base = np.where(np.isneginf(right[0]), x.work(0), right[0])
        shrink, powers = np.exp(state[0] - base), np.exp(s - base)
        total = (state[1] + powers.sum(axis=3, keepdims=True)) * shrink if self.late_total else right[1]
        return right[0], total, (state[2] + powers @ v) * shrink if self.late_output else right[2]


#: Mistakes of tiles of keys, in words; the sizes that are faults of the registry are left out.
TILES: dict[str, tuple[str, type[Tiled]]] = {
    "the running output is not rescaled when the maximum rises": ("SDPA-14", OutputNotRescaled),
    "the running sum is not rescaled when the maximum rises": ("SDPA-14", TotalNotRescaled),
    "neither the running sum nor the running output is rescaled": ("SDPA-14", MaximumOverwritten),
    "a rise of the maximum below 8 is not rescaled": ("SDPA-14", SmallRisesNotRescaled),
    "the running output is rescaled after the tile is added": (
        "SDPA-14",
        _form(RescaledAfter, late_total=False, late_output=True),
    ),
    "the running sum is rescaled after the tile is added": (
        "SDPA-14",
        _form(RescaledAfter, late_total=True, late_output=False),
    ),
    "the running sum and output are rescaled after the tile is added": (
        "SDPA-14",
        _form(RescaledAfter, late_total=True, late_output=True),
    ),
    "exp(−inf + inf) where the first tile is masked": ("SDPA-14", FirstTileNan),
    "a masked tile leaves a maximum of 0 behind": ("SDPA-14", MaskedTileMaximumZero),
    "keys behind the last full tile dropped": ("SDPA-1", TailDropped),
    "keys behind the last full tile dropped, all of them where no tile is full": ("SDPA-1", TailAlwaysDropped),
    "the last key lost where one key is left for the last tile": ("SDPA-1", TailOfOneLost),
    "the last tile reads past its end: the first keys of the sequence again": ("SDPA-1", TailReadsOn),
}


def _tiles() -> Iterator[Form]:
    for (title, (clause, base)), size in itertools.product(TILES.items(), TILED):
        known = base.tile == size and base.__module__ != __name__  # a fault
        if not known:
            bases = (base,) if size == Tiled.tile else (base, TILED[size])
            make = type(base.__name__, bases, {"tile": size, "__module__": __name__})
            yield "form-tile", clause, f"{title}, with tiles of {size} keys", make
    for rows in list(TILED)[1:]:  # 16 is a fault
        title = f"query rows behind the last full tile not written, with tiles of {rows} rows"
        yield "form-tile", "SDPA-1", title, _form(QueryTailNotWritten, rows=rows)
    for rows in TILED:

        def rule(model: Any, x: Inputs, rows: int = rows) -> Array:
            seen: Array = model.keys(x) <= model.diagonal(x)
            return seen & (model.keys(x) < (_rows(x) // rows + 1) * rows)

        title = f"the last tile of keys of a causal row is counted without the offset, with tiles of {rows} rows"
        yield "form-tile", "SDPA-10", title, _allowing("causal_allows", rule)


class SinkPerChunk(Attention):
    """A sink counts once for each chunk of keys."""

    chunk: ClassVar[int]

    def sinks(self, x: Inputs) -> Array:
        chunks = max(1, -(-x.shape[3] // self.chunk))
        return super().sinks(x) + x.work(np.log(chunks))


def _sinks() -> Iterator[Form]:
    for chunk in (32, 64, 128, 256, 512, 1024):  # once for each 16 is a fault
        title = f"a sink counts once for each {chunk} keys"
        yield "form-sink", "SDPA-38", title, _form(SinkPerChunk, chunk=chunk)


class Floor(Attention):
    """Weights below a number are raised to it, those of masked keys too."""

    floor: ClassVar[float]

    def normalized(self, x: Inputs, powers: Array, total: Array, allowed: Array) -> Array:
        return np.maximum(super().normalized(x, powers, total, allowed), x.work(self.floor))


class SlicesAsKeys(Attention):
    """Slices of the head width count as separate keys with the same value: their powers add up."""

    width: ClassVar[int]

    def scores(self, x: Inputs, q: Array, k: Array) -> Array:
        if q.shape[3] <= self.width:
            return super().scores(x, q, k)
        parts = range(0, q.shape[3], self.width)
        found = [super(SlicesAsKeys, self).scores(x, *(a[..., n : n + self.width] for a in (q, k))) for n in parts]
        return np.asarray(np.logaddexp.reduce(found))


class NanRowZero(Attention):
    """A maximum that skips NaN stays at −inf in a row of only NaN, as in a fully masked row; in others NaN shows."""

    def filled(self, x: Inputs, s: Array, allowed: Array) -> Array:
        self._lost = allowed.any(axis=3, keepdims=True) & (np.isnan(s) | ~allowed).all(axis=3, keepdims=True)
        return super().filled(x, s, allowed)

    def normalized(self, x: Inputs, powers: Array, total: Array, allowed: Array) -> Array:
        return np.where(self._lost, x.work(0), super().normalized(x, powers, total, allowed))


class EmptyRowSeesAll(Attention):
    """One number is added to all scores of a row that a mask empties, in a wide enough dtype: nothing changes."""

    def allowed(self, x: Inputs) -> Array:
        found = super().allowed(x)
        return np.where(found.any(axis=3, keepdims=True), found, super().allowed(replace(x, mask=None)))


class Truncated(Attention):
    """Results in half precision keep the upper bits of the wider number, whatever the lower ones are."""

    def stored(self, x: Inputs, output: Array) -> Array:
        return truncated(super().stored(x, output), output)

    def stored_weights(self, x: Inputs, weights: Array) -> Array:
        return truncated(super().stored_weights(x, weights), weights)


def truncated(rounded: Array, wide: Array) -> Array:
    """Numbers of 16 bits, each the next one towards zero where it was rounded away from zero."""
    if rounded.dtype.itemsize != 2:
        return rounded
    away = np.abs(rounded.astype(wide.dtype)) > np.abs(wide)
    return (rounded.view(np.uint16) - away.astype(np.uint16)).view(rounded.dtype)


class GuardedNoMaximum(NoMaximum):
    """A row whose powers are all 0 is guarded, so that 0 is not divided by 0."""

    def normalized(self, x: Inputs, powers: Array, total: Array, allowed: Array) -> Array:
        return Attention.normalized(self, x, powers, total, allowed)


def _softmaxes() -> Iterator[Form]:
    title = "the maximum is not taken off before exp, and a row whose powers are all 0 gives zeros"
    yield "form-maximum", "SDPA-14", title, GuardedNoMaximum
    yield "form-truncated", "SDPA-25", "results in half precision are truncated, not rounded", Truncated
    title = "a row that a mask empties attends as if unmasked: the same finite number is added to all its scores"
    yield "form-empty-row", "SDPA-15", title, EmptyRowSeesAll
    yield "form-nan-row", "SDPA-23", "rows whose every score is NaN give zeros", NanRowZero
    for digits in (2, 3, 4, 5, 7, 8, 9, 10, 12):  # 1e−6 is a fault
        title = f"weights below 1e−{digits} raised to it, masked ones too"
        yield "form-floor", "SDPA-14", title, _form(Floor, floor=10.0**-digits)
    for width in (4, 8, 16, 32, 64, 128):
        title = f"slices of the head width, {width} columns each, taken for keys of their own"
        yield "form-slices", "SDPA-1", title, _form(SlicesAsKeys, width=width)


# Replacements of the softmax, of its axis, and of the arrays that are multiplied.


class OtherWeights(Attention):
    """Weights by another law of the scores, which are −inf at masked keys, or of the right weights; lse is right."""

    law: ClassVar[Callable[[Array, Array], Array]]

    def softmax(self, x: Inputs, s: Array, allowed: Array) -> tuple[Array, Array]:
        weights, lse = super().softmax(x, s, allowed)
        return type(self).law(s, weights), lse


def _softmax(s: Array, axes: int | tuple[int, ...] = 3) -> Array:
    """The softmax as a one-liner computes it: NaN where every score is −inf."""
    powers = np.exp(s - s.max(axis=axes, keepdims=True, initial=-np.inf))
    return powers / powers.sum(axis=axes, keepdims=True)


def _powers(s: Array) -> Array:
    """Exp of the scores less their maximum."""
    powers: Array = np.exp(s - s.max(axis=3, keepdims=True, initial=-np.inf))
    return powers


def _share(powers: Array) -> Array:
    return powers / powers.sum(axis=3, keepdims=True)


LAWS: dict[str, Callable[[Array, Array], Array]] = {
    "the softmax is applied twice": lambda s, p: _softmax(p),
    "the weights are the logarithms of the softmax": lambda s, p: np.log(p),
    "the weights are sigmoids of the scores": lambda s, p: 1 / (1 + np.exp(-s)),
    "the weights are sigmoids of the scores, divided by their sum": lambda s, p: _share(1 / (1 + np.exp(-s))),
    "the weights are the scores, 0 for negative ones": lambda s, p: np.maximum(s, 0),
    "the weights are the scores, 0 for negative ones, divided by their sum": lambda s, p: _share(np.maximum(s, 0)),
    "exp of the scores is not divided by its sum": lambda s, p: np.exp(s),
    "exp of the scores less their maximum is not divided by its sum": lambda s, p: _powers(s),
    "exp of the scores is divided by the root of the sum of its squares": lambda s, p: (
        _powers(s) / np.linalg.norm(_powers(s), axis=3, keepdims=True)
    ),
    "exp of the scores less the maximum over the keys is divided by its sum over the query rows": lambda s, p: (
        _powers(s) / _powers(s).sum(axis=2, keepdims=True)
    ),
    "the weights are divided by their sums over the query rows, too": lambda s, p: (
        p / (p.dtype.type(1e-9) + p.sum(axis=2, keepdims=True))
    ),
    "all weight is on the key with the largest score, in equal parts where several have it": lambda s, p: _share(
        (s == s.max(axis=3, keepdims=True, initial=-np.inf)).astype(s.dtype)
    ),
    "the weights are averaged over the heads, and used so": lambda s, p: np.broadcast_to(
        p.mean(axis=1, keepdims=True), p.shape
    ),
}


class AfterSoftmax(Attention):
    """Some masks multiplied with the weights after the softmax, so that rows no longer add up to 1."""

    #: The methods of SOURCES whose masks come late.
    late: ClassVar[tuple[str, ...]]

    def filled(self, x: Inputs, s: Array, allowed: Array) -> Array:
        early = [getattr(self, name)(x) for name in SOURCES if name not in self.late]
        return np.where(np.logical_and.reduce(early), s, x.work(-np.inf))

    def normalized(self, x: Inputs, powers: Array, total: Array, allowed: Array) -> Array:
        return super().normalized(x, powers, total, allowed) * allowed


#: Sets of masks that are applied after the softmax; only masks, without others, is a fault.
_LATE = ("c", "l", "w", "mc", "ml", "mw", "cl", "cw", "mcl", "mcw", "mclw")

#: Axes of the scores in words; axes of wrong softmaxes that are not faults of the registry.
_AXES = ("batches", "heads", "query rows", "keys")
SOFTMAX_AXES = ((0,), (0, 3), (1, 2), (2, 3), (0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3), (0, 1, 2, 3))


def _weights() -> Iterator[Form]:
    for title, law in LAWS.items():
        yield "form-weights", "SDPA-14", title, _form(OtherWeights, law=law)
    for late in _LATE:
        sources = tuple(_LETTER[letter] for letter in late)
        title = f"{' and '.join(SOURCES[name] for name in sources)} applied after the softmax"
        yield "form-late", "SDPA-13", title, _form(AfterSoftmax, late=sources)
    for axes in SOFTMAX_AXES:
        names = [_AXES[axis] for axis in axes]
        words = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
        make = _form(OtherWeights, law=lambda s, p, axes=axes: _softmax(s, axes))
        yield "form-axes", "SDPA-14", f"the softmax is over {words}{' together' if len(axes) > 1 else ''}", make


class OtherOperands(Attention):
    """Other arrays or rows instead of q, k and v; those that do not fit are refused, as by a product."""

    change: ClassVar[Callable[[Array, Array, Array], tuple[Array, Array, Array]]]

    def operands(self, x: Inputs) -> tuple[Array, Array, Array]:
        return type(self).change(*super().operands(x))


class ScoresTransposed(Attention):
    """k · qᵀ."""

    def scores(self, x: Inputs, q: Array, k: Array) -> Array:
        return super().scores(x, q, _as_many(k, q)).swapaxes(2, 3)


class QueriesAdded(Attention):
    """The residual connection, within attention."""

    def summed(self, x: Inputs, weights: Array, allowed: Array, v: Array) -> Array:
        return super().summed(x, weights, allowed, v) + x.q.astype(x.work)


def _as_many(array: Array, other: Array) -> Array:
    if array.shape[2] != other.shape[2]:
        raise ValueError(f"{array.shape[2]} rows for {other.shape[2]}")
    return array


OPERANDS: dict[str, Callable[[Array, Array, Array], tuple[Array, Array, Array]]] = {
    "scores are products of queries with queries": lambda q, k, v: (q, _as_many(q, k), v),
    "scores are products of keys with keys": lambda q, k, v: (_as_many(k, q), k, v),
    "queries are averaged in the place of values": lambda q, k, v: (q, k, _as_many(q, k)),
    "values stand one key later than they should": lambda q, k, v: (q, k, np.roll(v, 1, axis=2)),
    "values stand one key earlier than they should": lambda q, k, v: (q, k, np.roll(v, -1, axis=2)),
    "keys stand in reverse": lambda q, k, v: (q, k[:, :, ::-1], v),
    "heads of the queries stand in reverse": lambda q, k, v: (q[:, ::-1], k, v),
}


def _operands() -> Iterator[Form]:
    for title, change in OPERANDS.items():
        make = _form(OtherOperands, change=change)
        yield "form-operands", "SDPA-2" if title.startswith("scores") else "SDPA-16", title, make
    yield "form-operands", "SDPA-2", "scores are transposed", ScoresTransposed
    yield "form-output", "SDPA-16", "the queries are added to the output", QueriesAdded


# ALiBi, scales of heads, and rotary embedding.


class OtherSlopes(Attention):
    """ALiBi with other slopes, with other distances, or with the softcap over it."""

    change: ClassVar[Callable[[Array], Array]] = staticmethod(lambda slopes: slopes)
    #: Distance by the places of a row and a key, and the call.
    measure: ClassVar[Callable[[Array, Array, Inputs], Array]] = staticmethod(lambda row, key, x: np.abs(row - key))
    is_capped: ClassVar[bool] = False

    def capped(self, x: Inputs, s: Array) -> Array:
        if not self.is_capped or x.alibi_slopes is None:
            return super().capped(x, s)
        bias = x.alibi_slopes.astype(x.work)[:, None, None] * self.distance(x).astype(x.work)
        return super().capped(x, s - bias)

    def slopes(self, x: Inputs) -> Array:
        right = super().slopes(x)
        return np.zeros_like(right) if self.is_capped else np.asarray(type(self).change(right), x.work)

    def distance(self, x: Inputs) -> Array:
        return type(self).measure(self.diagonal(x), self.keys(x), x)


_OF_HEADS: dict[str, Callable[[Array], Array]] = {
    "of the first head for all of them": lambda heads: np.broadcast_to(heads[:1], heads.shape),
    "of the last head for all of them": lambda heads: np.broadcast_to(heads[-1:], heads.shape),
    "of the heads in reverse": lambda heads: heads[::-1],
}

_SLOPES: dict[str, Callable[[Array], Array]] = {
    "slopes are added, and not taken off: keys that are farther away gain": np.negative,
    "slopes times log2(e), as in powers of 2": lambda slopes: slopes / math.log(2),
    "slopes times ln 2, as in powers of 2": lambda slopes: slopes * math.log(2),
    "slopes are applied twice": lambda slopes: 2 * slopes,
    **{f"the slope {words}": change for words, change in _OF_HEADS.items()},
}

_DISTANCES: dict[str, Callable[[Array, Array, Inputs], Array]] = {
    "ALiBi by i − j without its size: keys behind the row gain": lambda row, key, x: row - key,
    "ALiBi for keys before the row alone": lambda row, key, x: np.maximum(row - key, 0),
    "ALiBi for keys behind the row alone": lambda row, key, x: np.maximum(key - row, 0),
    "ALiBi counted from the bottom right": lambda row, key, x: np.abs(
        np.arange(x.shape[2])[:, None] + x.shape[3] - x.shape[2] - key + np.zeros((1, 1, 1, 1), int)
    ),
    "ALiBi by the square of the distance": lambda row, key, x: (row - key) ** 2,
}


def _alibi() -> Iterator[Form]:
    for title, change in _SLOPES.items():
        yield "form-slopes", "SDPA-42", title, _form(OtherSlopes, change=change)
    for title, measure in _DISTANCES.items():
        yield "form-distance", "SDPA-42", title, _form(OtherSlopes, measure=measure)
    yield "form-slopes", "SDPA-42", "the softcap after ALiBi", _form(OtherSlopes, is_capped=True)


class OtherHeadScale(Attention):
    """The scale of each head changed, or applied in another place."""

    change: ClassVar[Callable[[Array], Array]] = staticmethod(lambda scale: scale)
    #: The step after which it is applied, "" for the right one.
    after: ClassVar[str] = ""

    def head_scale(self, x: Inputs) -> Array:
        right = super().head_scale(x)
        return np.ones_like(right) if self.after else np.asarray(type(self).change(right), x.work)

    def capped(self, x: Inputs, s: Array) -> Array:
        return self._scaled(x, super().capped(x, s), "the softcap")

    def added(self, x: Inputs, s: Array) -> Array:
        return self._scaled(x, super().added(x, s), "the bias")

    def summed(self, x: Inputs, weights: Array, allowed: Array, v: Array) -> Array:
        return self._scaled(x, super().summed(x, weights, allowed, v), "the softmax, to the output")

    def _scaled(self, x: Inputs, array: Array, step: str) -> Array:
        if x.head_scale is None or step != self.after:
            return array
        return array * x.head_scale.astype(x.work)[:, None, None]


_HEAD_SCALES: dict[str, Callable[[Array], Array]] = {
    "the root of the scale of each head": lambda scale: np.sqrt(np.abs(scale)),
    "scores are divided by the scale of each head": lambda scale: 1 / scale,
    **{f"the scale {words}": change for words, change in list(_OF_HEADS.items())[1:]},  # that of the first is a fault
}


def _head_scales() -> Iterator[Form]:
    for title, change in _HEAD_SCALES.items():
        yield "form-head-scale", "SDPA-43", title, _form(OtherHeadScale, change=change)
    for step in ("the softcap", "the bias", "the softmax, to the output"):
        title = f"the scale of each head is applied after {step}"
        yield "form-head-scale", "SDPA-43", title, _form(OtherHeadScale, after=step)


class OtherRotation(Attention):
    """Rotary embedding of other operands, at other places or by other tables."""

    #: Operands among q, k and v that are turned.
    operands_turned: ClassVar[str] = "qk"
    #: Places of the rows and of the keys, from the right ones.
    row_places: ClassVar[Callable[[Array, Inputs], Array]] = staticmethod(lambda place, x: place)
    key_places: ClassVar[Callable[[Array, Inputs], Array]] = staticmethod(lambda place, x: place)
    cos_sin: ClassVar[Callable[[Array, Array], tuple[Array, Array]]] = staticmethod(lambda cos, sin: (cos, sin))
    last_columns: ClassVar[bool] = False

    def operands(self, x: Inputs) -> tuple[Array, Array, Array]:
        plain = super().operands(replace(x, rotary_cos=None, rotary_sin=None))
        if x.rotary_cos is None or x.rotary_sin is None:
            return plain
        last = len(x.rotary_cos) - 1
        rows = np.clip(type(self).row_places(self.rotary_rows(x), x), 0, last)
        keys = np.clip(type(self).key_places(self.keys(x)[None], x), 0, last)
        places = {"q": rows, "k": keys, "v": keys}
        fits = 2 * x.rotary_cos.shape[1] <= x.v.shape[3]  # values may be too narrow to be turned
        q, k, v = (
            self.turned(x, array, places[name]) if name in self.operands_turned and (name != "v" or fits) else array
            for name, array in zip("qkv", plain, strict=True)
        )
        return q, k, v

    def tables(self, x: Inputs) -> tuple[Array, Array]:
        return type(self).cos_sin(*super().tables(x))

    def turned(self, x: Inputs, rows: Array, place: Array) -> Array:
        if not self.last_columns:
            return super().turned(x, rows, place)
        width = 2 * self.tables(x)[0].shape[1]
        still, moved = np.split(rows, [rows.shape[3] - width], axis=3)
        return np.concatenate([still, super().turned(x, moved, place)], axis=3)


_ROTATIONS: dict[str, dict[str, Any]] = {
    "queries are turned, and keys are not": {"operands_turned": "q"},
    "keys are turned, and queries are not": {"operands_turned": "k"},
    "values are turned too": {"operands_turned": "qkv"},
    # Exchanged sine and cosine turn rows by 90° less the angle, which is the same between two rows.
    "rows are turned backwards: the sine has the other sign, or the place of the cosine": {
        "cos_sin": lambda cos, sin: (cos, -sin)
    },
    "the last columns are turned, and not the first": {"last_columns": True},
    "queries are turned one place too far": {"row_places": lambda place, x: place + 1},
    "queries are turned one place too little": {"row_places": lambda place, x: place - 1},
    "queries are turned by places counted from the bottom right": {
        "row_places": lambda place, x: np.arange(x.shape[2])[None] + x.shape[3] - x.shape[2]
    },
    "every query is turned to the place of the first one": {"row_places": lambda place, x: place[:, :1] + 0 * place},
    "every query is turned to the place of the last one": {"row_places": lambda place, x: place[:, -1:] + 0 * place},
    "new keys are turned as if no past came before them": {"key_places": lambda place, x: place - x.past},
    "past keys are not turned": {"key_places": lambda place, x: np.where(place < x.past, 0, place)},
}


def _rotations() -> Iterator[Form]:
    for title, settings in _ROTATIONS.items():
        yield "form-rotation", "SDPA-44", title, _form(OtherRotation, **settings)


# Options that are dropped, or read wrongly.


class Changed(Attention):
    """Right attention on a changed call."""

    change: ClassVar[Callable[[Inputs], Inputs]]

    def attend(self, x: Inputs) -> Expected:
        return super().attend(type(self).change(x))


#: Options that are dropped, in words; all others are faults.
_OPTIONS: dict[str, str] = {
    "bias": "the bias, its −inf too,",
    "causal_offset": "the causal offset",
}


def _first(x: Inputs, name: str, axis: int, place: int) -> Inputs:
    """The call with one index of an axis of a mask or bias used for all."""
    array = getattr(x, name)
    if array is None:
        return x
    full = np.broadcast_to(array, x.shape)
    if not full.shape[axis]:
        return x
    one = np.take(full, [place if place >= 0 else full.shape[axis] - 1], axis)
    return replace(x, **{name: np.broadcast_to(one, full.shape)})  # type: ignore[arg-type]


def _dropped() -> Iterator[Form]:
    for name, words in _OPTIONS.items():
        drop = functools.partial(lambda x, name: replace(x, **{name: None}), name=name)
        yield "form-dropped", "SDPA-13", f"{words} is ignored", _form(Changed, change=drop)
    axes = ((0, "batch"), (1, "head"), (2, "row"), (3, "key"))
    for name, (axis, words), place in itertools.product(("mask", "bias"), axes, (0, -1)):
        if (name, place) == ("mask", 0) and words in ("head", "row"):
            continue  # faults
        title = f"the {name} of the {'last' if place else 'first'} {words} for all of them"
        first = functools.partial(_first, name=name, axis=axis, place=place)
        yield "form-first", "SDPA-8", title, _form(Changed, change=first)
    for name in ("mask", "bias"):
        for a, b, words in (
            (2, 3, "transposed"),
            (0, 1, "with batch and head exchanged"),
            (1, 2, "with head and row exchanged"),
        ):
            if (name, words) == ("mask", "transposed"):
                continue  # a fault
            swap = functools.partial(_swapped, name=name, a=a, b=b)
            yield "form-transposed", "SDPA-8", f"the {name} {words}", _form(Changed, change=swap)
        for axis, words in ((2, "rows"), (3, "keys"), (1, "heads"), (0, "batches")):
            flip = functools.partial(_flipped, name=name, axis=axis)
            yield "form-reversed", "SDPA-8", f"the {name} with its {words} in reverse", _form(Changed, change=flip)


def _swapped(x: Inputs, name: str, a: int, b: int) -> Inputs:
    array = getattr(x, name)
    if array is None or x.shape[a] != x.shape[b]:
        return x
    return replace(x, **{name: np.broadcast_to(array, x.shape).swapaxes(a, b)})  # type: ignore[arg-type]


def _flipped(x: Inputs, name: str, axis: int) -> Inputs:
    array = getattr(x, name)
    return x if array is None else replace(x, **{name: np.flip(np.broadcast_to(array, x.shape), axis)})  # type: ignore[arg-type]


# A past.


class OtherPast(Attention):
    """Past and new keys, or values, joined in another way; the present is the joined array."""

    #: Function that joins past and new, and the arrays among k and v that it joins.
    join: ClassVar[Callable[[Array, Array], Array]]
    of: ClassVar[str]

    def joined(self, x: Inputs) -> Inputs:
        if x.past_key is None or x.past_value is None:
            return x
        right = super().joined(x)
        k, v = ((type(self).join(past, new)) for past, new in ((x.past_key, x.k), (x.past_value, x.v)))
        return replace(right, k=k if "k" in self.of else right.k, v=v if "v" in self.of else right.v)


class PresentExchanged(Attention):
    """Values where keys belong, and the other way round."""

    def present(self, x: Inputs) -> tuple[Array, Array]:
        return x.v, x.k


def _after(past: Array, new: Array) -> Array:
    return np.concatenate([past, new], axis=2)


#: Wrong ways to join past and new keys or values.
JOINS: dict[str, Callable[[Array, Array], Array]] = {
    "stand behind the new ones": lambda past, new: _after(new, past),
    "stand in reverse": lambda past, new: _after(past[:, :, ::-1], new),
    "lack the first one": lambda past, new: _after(past[:, :, 1:], new),
    "lack the last one": lambda past, new: _after(past[:, :, :-1], new),
    "are those of the first batch": lambda past, new: _after(np.repeat(past[:1], len(past), axis=0), new),
    "are those of the batches in reverse": lambda past, new: _after(past[::-1], new),
    "are those of the heads in reverse": lambda past, new: _after(past[:, ::-1], new),
}


def _pasts() -> Iterator[Form]:
    for (words, join), (of, arrays) in itertools.product(
        JOINS.items(), (("kv", "keys and values"), ("k", "keys"), ("v", "values"))
    ):
        if len(of) == 1 and "lack" in words:
            continue  # as many keys as values are needed
        yield "form-past", "DEC-1", f"past {arrays} {words}", _form(OtherPast, join=join, of=of)
    yield "form-present", "DEC-3", "the present has values for keys and keys for values", PresentExchanged


# Layers.


class OtherParameters(Layer):
    """Weights and biases of projections taken for each other, or left out."""

    #: The projection whose weight, and whose bias, a projection uses; None for no bias.
    weight_of: ClassVar[dict[str, str]]
    bias_of: ClassVar[dict[str, str | None]]

    def weight(self, x: LayerCall, name: str) -> Array:
        return super().weight(x, self.weight_of.get(name, name))

    def bias(self, x: LayerCall, name: str) -> Array | None:
        of = self.bias_of.get(name, name)
        return None if of is None else super().bias(x, of)


class InputsExchanged(Layer):
    """Queries come from x_kv, and keys and values from x_q."""

    def inputs(self, x: LayerCall) -> tuple[Array, Array]:
        queries, keys = super().inputs(x)
        return keys, queries


class ValuesOfQueryInput(Layer):
    """Only keys come from x_kv; fits only for as many queries as keys."""

    def projections(self, x: LayerCall, queries: Array, keys: Array) -> tuple[Projection, Projection, Projection]:
        q, k, _ = super().projections(x, queries, keys)
        return q, k, self.project(x, "v", _rows_of(queries, keys))


class HeadsFirst(Layer):
    """The heads' memory, (H, B, S, Dv), read as (B, S, H·Dv)."""

    def combine(self, x: LayerCall, output: Array) -> Array:
        batch, heads, length, width = output.shape
        return np.ascontiguousarray(output.swapaxes(0, 1)).reshape(batch, length, heads * width)


class InputSplit(Layer):
    """Each head of the input is multiplied by its own block of a weight, which so becomes block-diagonal."""

    def weight(self, x: LayerCall, name: str) -> Array:
        w = super().weight(x, name)
        if name == "o" or w.shape[0] % x.heads or w.shape[1] % x.heads:
            return w
        blocks = np.kron(np.eye(x.heads), np.ones((w.shape[0] // x.heads, w.shape[1] // x.heads)))
        return w * blocks.astype(w.dtype)


def _rows_of(array: Array, other: Array) -> Array:
    if array.shape[1] != other.shape[1]:
        raise ValueError(f"{array.shape[1]} rows for {other.shape[1]}")
    return array


#: Projections in words, and those that are taken for each other.
PROJECTIONS = {"q": "queries", "k": "keys", "v": "values", "o": "the output"}
EXCHANGED = (("q", "k"), ("q", "v"), ("k", "v"))
ROTATED = ({"q": "k", "k": "v", "v": "q"}, {"q": "v", "k": "q", "v": "k"})
#: Sets of biases that are left out; that of values, and those of q, k and v together, are faults.
WITHOUT_BIAS = ("q", "k", "o", "qk", "kv", "qv", "qkvo")


def _parameters() -> Iterator[tuple[str, type[Layer]]]:
    """Mistakes of parameters in words, and the layer that makes each."""

    def model(weights: dict[str, str], biases: dict[str, str | None]) -> type[Layer]:
        return _form(OtherParameters, weight_of=weights, bias_of=biases)

    for a, b in EXCHANGED:
        both = {a: b, b: a}
        words = f"of {PROJECTIONS[a]} and {PROJECTIONS[b]} taken for each other"
        yield f"weights and biases {words}", model(both, {**both})
        yield f"weights {words}, and not their biases", model(both, {})
        yield f"biases {words}", model({}, {**both})
    for turned in ROTATED:
        words = ", ".join(f"{PROJECTIONS[a]} use those of {PROJECTIONS[b]}" for a, b in turned.items())
        yield f"weights and biases in another order: {words}", model(turned, {**turned})
    for a, b in itertools.permutations("qkv", 2):
        words = f"{PROJECTIONS[a]} projected with the weight of {PROJECTIONS[b]}"
        yield f"{words}, and their own bias", model({a: b}, {})
        if "q" in (a, b):  # the others are faults
            yield f"{words}, and its bias", model({a: b}, {a: b})
    for names in WITHOUT_BIAS:
        words = " and ".join(filter(None, [", ".join(PROJECTIONS[n] for n in names[:-1]), PROJECTIONS[names[-1]]]))
        yield f"the {'biases' if len(names) > 1 else 'bias'} of {words} ignored", model({}, dict.fromkeys(names))


def _of_layers(operator: str) -> Iterator[Fault]:
    """Forms of a layer itself, within its operator or within a sub-layer."""
    made = [("form-parameters", "MHA-2", title, make) for title, make in _parameters()]
    made += [
        ("form-inputs", "MHA-4", "queries come from x_kv, and keys and values from x_q", InputsExchanged),
        (
            "form-inputs",
            "MHA-4",
            "in cross-attention values come from x_q, and only keys from x_kv",
            ValuesOfQueryInput,
        ),
        ("form-heads", "MHA-5", "the input is split into heads before it is projected", InputSplit),
        ("form-heads", "MHA-11", "heads combined by a view of (H, B, S, Dv) as (B, S, H·Dv)", HeadsFirst),
    ]
    for name, clause, title, make in made:
        inside = make if operator == "mha" else type(make.__name__, (make, Sublayer), {"__module__": __name__})
        yield Fault(name, clause, title, (), inside)


class OneOfGroup(Backward):
    """The gradients of k, of v, or of both, of one query head of each group, which is not summed."""

    #: The letters of these gradients, and the head of the group.
    of: ClassVar[str]
    head: ClassVar[int]

    def grad_k(self, x: Inputs, found: Expected, d_raw: Array) -> Array:
        if "k" not in self.of:
            return super().grad_k(x, found, d_raw)
        return self._one(x, d_raw.swapaxes(2, 3) @ found.q) * x.work(self.inner.scale(x))

    def grad_v(self, x: Inputs, weights: Array, g: Array) -> Array:
        return self._one(x, weights.swapaxes(2, 3) @ g) if "v" in self.of else super().grad_v(x, weights, g)

    def _one(self, x: Inputs, array: Array) -> Array:
        return array.reshape(len(array), x.k.shape[1], x.group, *array.shape[2:])[:, :, self.head]


@functools.cache
def _of_gradients() -> tuple[Fault, ...]:
    """Forms of the backward pass."""
    found = []
    for of, (head, which) in itertools.product(("k", "v", "kv"), ((0, "first"), (-1, "last"))):
        if (of, head) != ("kv", 0):  # a fault
            gradients = f"gradient{'s' if len(of) > 1 else ''} of {' and '.join(of)}"
            title = f"the {gradients} of the {which} query head of each group alone, not their sum"
            found.append(Fault("form-group", "GRAD-6", title, (), _form(OneOfGroup, of=of, head=head)))
    return tuple(found)


@functools.cache
def _forms(operator: str) -> tuple[Fault, ...]:
    every = itertools.chain(
        _dropped(),
        _alibi(),
        _head_scales(),
        _rotations(),
        _bottom_right(),
        _offsets(),
        _windows(),
        _lengths(),
        _further(),
        _padding(),
        _sinks(),
        _tiles(),
        _softmaxes(),
        _weights(),
        _operands(),
        _pasts(),
        _fills(),
        _addends(),
        _products(),
        _multiplied(),
    )
    forms = tuple(Fault(name, clause, title, (), in_operator(make, operator)) for name, clause, title, make in every)
    return forms if operator == "sdpa" else (*_of_layers(operator), *forms)


def forms_of(operator: str) -> list[Fault]:
    """The forms that an operator, or the attention within, may have; gradients have only a few of their own."""
    if operator == "sdpa_grad":
        return list(_of_gradients())
    return list(_forms(operator)) if operator in ("sdpa", "mha", "sublayer") else []
