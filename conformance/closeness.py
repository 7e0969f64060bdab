"""Closeness: whether results that somebody has are attention of their inputs, within the bound for these very inputs.

``assert_close`` stands in a test where ``allclose`` did, and has no tolerance to choose.  What decides is the judge of
the suite (judging/judge.py); here arrays become its case, long inputs are sampled, and its finding becomes an
``AssertionError``.  The diagnosis is made when the error's text is asked for, as it takes longer than the comparison.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

from attention_conformance.conformance.bounds.sdpa import LARGEST
from attention_conformance.conformance.cases.base import NUMPY_DTYPES
from attention_conformance.conformance.cases.data import Shape
from attention_conformance.conformance.cases.given import (
    GivenGradients,
    GivenHeads,
    GivenMha,
    GivenMhaGradients,
    GivenRows,
    GivenSdpa,
    GivenSublayer,
    given,
)
from attention_conformance.conformance.cases.layer import LayerShape
from attention_conformance.conformance.judging import judge
from attention_conformance.conformance.judging.judge import Finding
from attention_conformance.conformance.judging.message import clause_lines, inputs_line, runs
from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.spec import sdpa as reference
from attention_conformance.conformance.spec.inputs import GradientInputs, Inputs, LayerGradientInputs, LayerInputs
from attention_conformance.conformance.spec.sdpa import InvalidInput
from attention_conformance.impls.backend import to_numpy
from attention_conformance.impls.calls import Reply
from attention_conformance.impls.contract import DTYPES, Implementation, Layout, Profile
from attention_conformance.impls.loading import nearest
from attention_conformance.impls.operators import OPERATORS

#: Scores (B, Hq, Sq, Sk) up to which every row is computed again, about a second on one core; rows of every head that
#: are sampled at least beyond it; and scores of the key heads whose gradients are computed.
WHOLE, FEWEST_ROWS, GRADIENT_SCORES = 2**20, 8, 2**21

#: Scores of an input on which known mistakes are tried, about a minute at most.
DIAGNOSED = 2**18

#: Where tiles of kernels end.
TILES = (16, 32, 64, 128, 256)

#: What a wrong output breaks where one of these options is given, and nothing else tells.
_CLAUSES = {
    "causal_offset": "SDPA-10",
    "is_causal": "SDPA-9",
    "window": "SDPA-11",
    "kv_lengths": "SDPA-12",
    "mask": "SDPA-7",
    "bias": "SDPA-6",
    "softcap": "SDPA-5",
    "sinks": "SDPA-38",
    "past_key": "DEC-1",
    "scale": "SDPA-4",
}

T = TypeVar("T")

_PLAIN = Implementation("given", "given:none")


@dataclass(frozen=True)
class Closeness:
    """How close results are: ``share`` is the largest error/bound, ``shares`` that of each result by its name.

    ``rows`` are the query rows that were checked, and ``heads`` the key heads of gradients, None for all of them.
    """

    share: float
    shares: Mapping[str, float]
    profile: str
    rows: tuple[int, ...] | None
    heads: tuple[int, ...] | None
    seconds: float


class NotClose(AssertionError):
    """Results are not attention of their inputs; the text says by which clause, where, and what they equal.

    ``share`` is the largest error/bound (inf for a wrong shape, dtype or NaN), ``failure`` is "value", "shape" or
    "dtype", ``result`` the name of the wrong result, and ``clause`` the one that is broken.
    """

    def __init__(self, case: Any, reply: Reply, blank: Result, finding: Finding, note: str) -> None:
        super().__init__(finding.reason)
        self._case, self._reply, self._blank, self._finding, self._note = case, reply, blank, finding, note
        self.share = float("inf") if blank.share is None else blank.share
        self.failure = finding.failure.value
        self.result = finding.reason.rpartition(": ")[2].split()[0]

    @functools.cached_property
    def _explained(self) -> tuple[str, list[str]]:
        """The clause, and the lines of a diagnosis."""
        return _diagnosis(self._case, self._reply, self._blank, self._finding)

    @property
    def clause(self) -> str:
        """The clause that is broken: that of the mistake which the result equals, if one is known."""
        return self._explained[0]

    @functools.cached_property
    def message(self) -> str:
        """The whole text."""
        clause, lines = self._explained
        dtype = self._blank.dtype
        what = f"{dtype}, profile {self._blank.profile}"
        head = f"not what {self._case.operator} gives ({what}): wrong by {self.failure}: {self._finding.reason}"
        inputs = f"Inputs:   {inputs_line(self._case, dtype)}"
        note = [f"Checked:  {self._note}"] if self._note else []
        return "\n".join([head, *clause_lines(clause), inputs, *note, *self._finding.details, *lines])

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> Any:  # to another process as its text alone
        return AssertionError, (self.message,)


@dataclass(frozen=True)
class _Part:
    """A case, what came for it, and what is said of what was checked."""

    case: Any
    reply: Reply
    note: str = ""


@dataclass(frozen=True)
class _Question:
    """Everything that is compared: the parts, and what was sampled."""

    parts: tuple[_Part, ...]
    dtype: str
    profile: Profile
    rows: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None


def assert_close(output: Any, q: Any, k: Any, v: Any, **options: Any) -> Closeness:
    """Assert that ``output`` is attention of q, k and v, within the error bound for this very input.

    Parameters
    ----------
    output
        (B, Hq, Sq, Dv), of any framework and on any device, as all arrays here.
    q, k, v
        (B, Hq, Sq, D), (B, Hkv, Sk, D) and (B, Hkv, Sk, Dv), of one dtype: float64, float32, float16 or bfloat16.
        Without batch (Hq, Sq, D), and without heads too (Sq, D); the results then likewise.
    mask, bias
        Boolean, True where a key takes part, and numbers added to the scores; both broadcast to (B, Hq, Sq, Sk).
    is_causal, causal_offset, window, kv_lengths, scale, softcap, sinks, past_key, past_value
        As SPEC.md defines them: causal masks are aligned at the top left, ``causal_offset=Sk - Sq`` is bottom right.
    weights, lse
        Further results of the same call, (B, Hq, Sq, Sk) and (B, Hq, Sq), the latter in float32 or wider.
    present_key, present_value
        Further results of a call with past keys, (B, Hkv, Sk, D) and (B, Hkv, Sk, Dv).
    grad_output, grad_q, grad_k, grad_v, grad_bias
        The gradient of a loss with respect to the output, and those to check.
    profile
        "wide", "fused", "storage" or "tf32": which intermediate results may be rounded (SPEC.md, SDPA-25).  By
        default that of an ordinary plug-in: wide in float32 and float64, storage in float16 and bfloat16.
    layout
        "bhsd", or "bshd" for (B, S, H, D), as flash-attention and JAX have it.
    rows
        Query rows of every head to check; by default all up to 2²⁰ scores (B · Hq · Sq · Sk), then as many as make up
        2²⁰, 8 at least.  First and last rows, edges of tiles and rows that look odd are always among them.
    seed
        Chooses the others.

    Returns
    -------
    Closeness
        The share of the bound that is used, what was checked, and seconds.

    Raises
    ------
    NotClose
        An AssertionError.
    TypeError, ValueError
        Where the inputs do not fit together, or the spec leaves the result open (SDPA-37, GRAD-15).
    """
    __tracebackhide__ = True
    return _checked(_attention(output, q, k, v, **_known(options)))


def error_share(output: Any, q: Any, k: Any, v: Any, **options: Any) -> float:
    """The largest error/bound of results: at most 1 where ``assert_close`` with the same arguments passes.

    inf for NaN where a number was expected, and for a wrong shape or dtype.  Raises TypeError and ValueError alike.
    """
    return _share(_attention(output, q, k, v, **_known(options)))


def assert_layer_close(output: Any, x_q: Any, w_q: Any, w_k: Any, w_v: Any, *, heads: int, **options: Any) -> Closeness:
    """Assert that ``output`` is multi-head attention, or the sub-layer, of its inputs, within the bound for them.

    Parameters
    ----------
    output, x_q, w_q, w_k, w_v
        (B, Sq, Eo), (B, Sq, E), (E, H · D), (Ekv, H · D) and (Ekv, H · Dv).  Projections are x @ w + b, so the weight
        of a ``torch.nn.Linear`` is given transposed.
    heads
        H.
    x_kv, w_o, b_q, b_k, b_v, b_o, mask, bias, is_causal, kv_lengths, scale, sequence_first
        As SPEC.md defines them for mha.
    weights, average_weights
        A second result, (B, H, Sq, Sk), and whether it is the mean over the heads, (B, Sq, Sk).
    gamma, beta, epsilon, pre_norm
        Of the sub-layer: with them the output is LayerNorm(x + mha(x)), or x + mha(LayerNorm(x)) with ``pre_norm``.
    grad_output, gradients
        The gradient of a loss with respect to the output, and those to check, by what they are the gradient of:
        ``{"x_q": …, "w_o": …}``; not of the sub-layer.
    profile
        As in ``assert_close``.

    Returns
    -------
    Closeness

    Raises
    ------
    NotClose
        An AssertionError.
    TypeError, ValueError
        Where the inputs do not fit together.
    """
    __tracebackhide__ = True
    return _checked(_layer(output, x_q, w_q, w_k, w_v, heads=heads, **options))


def layer_error_share(output: Any, x_q: Any, w_q: Any, w_k: Any, w_v: Any, *, heads: int, **options: Any) -> float:
    """The largest error/bound of results of a layer, with the arguments of ``assert_layer_close``."""
    return _share(_layer(output, x_q, w_q, w_k, w_v, heads=heads, **options))


# From arrays to a question.


def _attention(
    output: Any,
    q: Any,
    k: Any,
    v: Any,
    *,
    mask: Any = None,
    bias: Any = None,
    is_causal: bool = False,
    causal_offset: Any = None,
    window: tuple[int | None, int | None] | None = None,
    kv_lengths: Any = None,
    scale: Any = None,
    softcap: Any = None,
    sinks: Any = None,
    past_key: Any = None,
    past_value: Any = None,
    weights: Any = None,
    lse: Any = None,
    present_key: Any = None,
    present_value: Any = None,
    grad_output: Any = None,
    grad_q: Any = None,
    grad_k: Any = None,
    grad_v: Any = None,
    grad_bias: Any = None,
    profile: Profile | str | None = None,
    layout: Layout | str = Layout.BHSD,
    rows: int | None = None,
    seed: int = 0,
) -> _Question:
    form = _Form(_layout(layout), 4 - _array("q", q).ndim)
    arrays = {n: form.four(n, _array(n, a)) for n, a in (("q", q), ("k", k), ("v", v))}
    dtype = _dtype(arrays)
    keywords: dict[str, Any] = {
        "mask": mask, "bias": bias, "causal_offset": causal_offset, "kv_lengths": kv_lengths, "sinks": sinks,
        "past_key": past_key, "past_value": past_value,
    }  # fmt: skip
    keywords = {n: _array(n, a) for n, a in keywords.items() if a is not None}
    keywords |= {n: form.four(n, keywords[n]) for n in ("past_key", "past_value") if n in keywords}
    numbers = {"scale": scale, "softcap": softcap}
    keywords |= {n: float(_array(n, x) if hasattr(x, "__array__") else x) for n, x in numbers.items() if x is not None}
    keywords |= {"is_causal": True} if is_causal else {}
    keywords |= {"window": tuple(window)} if window is not None else {}
    _check_options(keywords, arrays)
    results = {
        "output": output, "weights": weights, "lse": lse, "present_key": present_key, "present_value": present_value,
        "grad_q": grad_q, "grad_k": grad_k, "grad_v": grad_v, "grad_bias": grad_bias,
    }  # fmt: skip
    came = {n: form.result(n, _array(n, a)) for n, a in results.items() if a is not None}
    forward = {n: a for n, a in came.items() if not n.startswith("grad_")}
    backward = {n: a for n, a in came.items() if n.startswith("grad_")}
    chosen = _profile(profile, dtype)
    parts: list[_Part] = []
    checked, kept = None, None
    _check_fit(arrays, keywords)
    if forward:
        part, checked = _forward(arrays, keywords, forward, form, dtype, rows, seed)
        parts.append(part)
    if backward:
        if grad_output is None:
            raise ValueError(f"{', '.join(backward)} came without grad_output, of which they depend")
        given_grad = form.four("grad_output", _array("grad_output", grad_output))
        part, kept = _backward(arrays, keywords, given_grad, backward, form, dtype, seed)
        parts.append(part)
    return _Question(tuple(parts), dtype, chosen, checked, kept)


def _known(options: dict[str, Any]) -> dict[str, Any]:
    """The options.  Raises TypeError for one that is misspelt, or is another library's."""
    names = inspect.signature(_attention).parameters
    for name in options:
        if name not in names:
            raise TypeError(f"assert_close has no option {name!r}{nearest(name, list(names)[4:])}")
    return options


for _function in (assert_close, error_share):  # what help() shows
    _returned = inspect.signature(_function).return_annotation
    _function.__signature__ = inspect.signature(_attention).replace(return_annotation=_returned)  # type: ignore[union-attr]


@dataclass(frozen=True)
class _Form:
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
        """A result with all its axes; one of another rank stays as it is, and is then of a wrong shape."""
        if name == "grad_bias":
            return array
        if array.ndim != (3 if name == "lse" else 4) - self.dropped:
            return array
        array = array[(None,) * self.dropped]
        inside = self.layout is Layout.BSHD and self.dropped < 2 and name not in ("weights", "lse")
        return array.transpose(0, 2, 1, 3) if inside else array


def _array(name: str, array: Any) -> np.ndarray:
    if name in ("causal_offset", "kv_lengths") and isinstance(array, int | list | tuple):
        array = np.asarray(array)
    try:
        return to_numpy(array)
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None


def _layout(layout: Layout | str) -> Layout:
    try:
        return Layout(str(layout).upper())
    except ValueError:
        raise ValueError(f"layout is {layout!r}; there are 'bhsd' and 'bshd'") from None


def _profile(profile: Profile | str | None, dtype: str) -> Profile:
    if profile is None:
        return _PLAIN.profile(dtype)
    try:
        return Profile(profile)
    except ValueError:
        raise ValueError(f"profile is {profile!r}; there are {', '.join(Profile)}") from None


def _dtype(arrays: Mapping[str, np.ndarray]) -> str:
    found = {name: str(array.dtype) for name, array in arrays.items()}
    for name, dtype in found.items():
        if dtype not in DTYPES:
            raise TypeError(f"{name} is {dtype}; there are bounds for {', '.join(DTYPES)}")
    if len(set(found.values())) > 1:
        raise TypeError("the inputs must have one dtype: " + ", ".join(f"{n} is {d}" for n, d in found.items()))
    return next(iter(found.values()))


def _check_options(keywords: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Refuse what the spec gives no meaning to (SDPA-37), and what is likely a slip."""
    for name in ("mask", "bias", "sinks"):
        if name in keywords:
            boolean, floating = keywords[name].dtype == bool, str(keywords[name].dtype) in DTYPES
            if name == "mask" and not boolean:
                raise TypeError(f"mask is {keywords[name].dtype}; it is boolean, and what is added to scores is bias")
            if name != "mask" and not floating:
                raise TypeError(f"{name} is {keywords[name].dtype}; it is a floating-point array")
    for name in ("causal_offset", "kv_lengths"):
        if name in keywords and keywords[name].dtype.kind not in "iu":
            raise TypeError(f"{name} is {keywords[name].dtype}; it holds integers")
    batch = arrays["q"].shape[0] if "q" in arrays else None
    for name in ("causal_offset", "kv_lengths"):
        allowed = (1, batch) if name == "causal_offset" else (batch,)
        if name in keywords and batch is not None and keywords[name].size not in allowed:
            raise ValueError(f"{name} has {keywords[name].size} entries, q has batch {batch}")
    if "causal_offset" in keywords and not keywords.keys() & {"is_causal", "window"}:
        raise ValueError("causal_offset shifts is_causal and window, and neither is given")
    if not keywords.get("softcap", 1.0) > 0:
        raise ValueError(f"softcap is {keywords['softcap']}; it is above 0, and left out for none")
    sides = keywords.get("window", (0, 0))
    if len(sides) != 2 or any(side is not None and side < 0 for side in sides):
        raise ValueError(f"window is {sides}; it is (left, right), each 0 or more, or None for an open side")
    if "kv_lengths" in keywords and batch is not None:
        past = keywords.get("past_key")
        keys = arrays["k"].shape[2] + (0 if past is None else past.shape[2])
        if (
            keywords["kv_lengths"].size
            and not 0 <= keywords["kv_lengths"].min() <= keywords["kv_lengths"].max() <= keys
        ):
            raise ValueError(f"kv_lengths are {keywords['kv_lengths'].tolist()}; there are {keys} keys")


def _check_fit(arrays: Mapping[str, np.ndarray], keywords: Mapping[str, Any]) -> None:
    """Refuse what does not fit together, by the reference over no row."""
    k, v = arrays["k"], arrays["v"]
    if keywords.keys() & {"past_key", "past_value"}:
        k, v = reference.joined(k, v, keywords.get("past_key"), keywords.get("past_value"))
    reference.check_inputs(arrays["q"], k, v, keywords.get("mask"), keywords.get("bias"), keywords.get("sinks"))
    for name, array in (("q", arrays["q"]), ("k", k), ("v", v)):
        if np.isinf(array).any():
            raise ValueError(f"{name} has an infinity; SDPA-37 leaves the result open")
    bias = keywords.get("bias")
    if bias is not None and (np.isnan(bias) | np.isposinf(bias)).any():
        raise ValueError("bias has NaN or +inf; SDPA-37 leaves the result open")


def _forward(
    arrays: Mapping[str, np.ndarray],
    keywords: Mapping[str, Any],
    came: Mapping[str, np.ndarray],
    form: _Form,
    dtype: str,
    wanted: int | None,
    seed: int,
) -> tuple[_Part, tuple[int, ...] | None]:
    """The case of output, weights and lse; long ones by rows."""
    q, k, v = arrays["q"], arrays["k"], arrays["v"]
    past = keywords.get("past_key")
    keys = k.shape[2] + (0 if past is None else past.shape[2])
    shape = Shape(q.shape[0], q.shape[1], k.shape[1], q.shape[2], keys, q.shape[3], v.shape[3])
    asked = {f"return_{n}": True for n in ("weights", "lse") if n in came}
    inputs = Inputs(q, k, v, {**keywords, **asked})
    shapes = _shapes(shape)
    scores = int(np.prod(shape.scores))
    if wanted is None:
        wanted = shape.sq if scores <= WHOLE else max(FEWEST_ROWS, WHOLE // max(1, shape.b * shape.hq * shape.sk))
    rows = _sample(shape.sq, wanted, came["output"] if "output" in came else next(iter(came.values())), seed)
    common = {"names": tuple(came), "dropped": form.dropped, "heads_inside": form.layout is Layout.BSHD}
    clause = _clause(keywords, shape)
    case = given(GivenRows, inputs, clause, shape, dtype, rows=tuple(rows.tolist()), whole=shapes, **common)
    note = ""
    if len(rows) < shape.sq:
        note = f"{len(rows)} of {shape.sq} query rows of every head, seed {seed}: {runs(rows.tolist())}"
    return _Part(case, Reply("returned", dict(came)), note), tuple(rows.tolist()) if note else None


def _shapes(s: Shape) -> dict[str, tuple[int, ...]]:
    """The shape of each result of sdpa."""
    return {
        "output": (s.b, s.hq, s.sq, s.dv),
        "weights": s.scores,
        "lse": s.scores[:3],
        "present_key": (s.b, s.hkv, s.sk, s.d),
        "present_value": (s.b, s.hkv, s.sk, s.dv),
    }


def _clause(keywords: Mapping[str, Any], shape: Shape) -> str:
    """The clause that a wrong output is blamed on while nothing better is known: of the one option, or of several."""
    options = [clause for name, clause in _CLAUSES.items() if name in keywords]
    if "causal_offset" in keywords and "is_causal" in keywords:
        options.remove(_CLAUSES["is_causal"])
    if len(options) == 1:
        return options[0]
    return "SDPA-13" if options else "SDPA-16" if shape.hq == shape.hkv else "SDPA-17"


def _sample(length: int, wanted: int, output: np.ndarray, seed: int) -> np.ndarray:
    """Sorted rows: all, or the first, the last, odd ones, edges of tiles and random ones, ``wanted`` in all."""
    if length <= wanted:
        return np.arange(length)
    if wanted < 1:
        raise ValueError(f"rows is {wanted}; at least one is checked")
    rng = np.random.default_rng(seed)
    edges = sorted({at for tile in TILES for first in range(tile, length, tile) for at in (first - 1, first)})
    chosen = [0, length - 1, *_odd(output, length), *rng.permutation(edges)[: wanted // 4].tolist()]
    chosen += rng.permutation(length)[:wanted].tolist()
    return np.sort(list(dict.fromkeys(chosen))[: max(wanted, 2)])


def _odd(output: np.ndarray, length: int) -> list[int]:
    """Rows whose output is not finite, all zero, or larger than in others, by a look at the output alone."""
    if output.ndim != 4 or output.shape[2] != length or not output.size:
        return []
    with np.errstate(all="ignore"):
        size = np.abs(output).max(axis=3).astype(np.float64)  # (B, Hq, Sq)
    tests = (~np.isfinite(size), size == 0)
    found = [int(np.flatnonzero(t.any((0, 1)))[0]) for t in tests if t.any() and not t.all()]
    return [*found, int(np.nan_to_num(size).max((0, 1)).argmax())]


def _backward(
    arrays: Mapping[str, np.ndarray],
    keywords: Mapping[str, Any],
    grad_output: np.ndarray,
    came: Mapping[str, np.ndarray],
    form: _Form,
    dtype: str,
    seed: int,
) -> tuple[_Part, tuple[int, ...] | None]:
    """The case of the gradients; long ones by key heads, the first, the last and random ones."""
    lacking = sorted(keywords.keys() & {"sinks", "past_key", "past_value"})
    if lacking:
        raise ValueError(f"the spec has no gradients with {', '.join(lacking)}")
    if "grad_bias" in came and "bias" not in keywords:
        raise ValueError("grad_bias came without a bias")
    q, k, v = arrays["q"], arrays["k"], arrays["v"]
    if grad_output.shape != (*q.shape[:3], v.shape[3]) or grad_output.dtype != q.dtype:
        raise ValueError(f"GRAD-12: grad_output is {grad_output.dtype}{grad_output.shape}")
    for name, array in (("q", q), ("k", k), ("v", v), ("grad_output", grad_output)):
        if not np.isfinite(array).all():
            raise ValueError(f"{name} has NaN or infinities; GRAD-15 leaves the gradients open")
    shape = Shape(q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3])
    whole = {"grad_q": q.shape, "grad_k": k.shape, "grad_v": v.shape}
    whole |= {"grad_bias": keywords["bias"].shape} if "bias" in keywords else {}
    group, bias = shape.hq // shape.hkv, keywords.get("bias")
    count = max(1, GRADIENT_SCORES // max(1, shape.b * group * shape.sq * shape.sk))
    shared = bias is not None and (bias.ndim < 3 or bias.shape[-3] == 1)  # its gradient is a sum over the heads
    common = {"names": tuple(came), "dropped": form.dropped, "heads_inside": form.layout is Layout.BSHD}
    if count >= shape.hkv or (shared and "grad_bias" in came):
        inputs = GradientInputs(q, k, v, grad_output, dict(keywords))
        return _Part(
            given(GivenGradients, inputs, "GRAD-3", shape, dtype, **common), Reply("returned", dict(came))
        ), None
    rng = np.random.default_rng(seed)
    kept = np.sort(list(dict.fromkeys([0, shape.hkv - 1, *rng.permutation(shape.hkv).tolist()]))[:count])
    queries = (kept[:, None] * group + np.arange(group)).ravel()
    options = {n: _heads_of(n, x, queries) for n, x in keywords.items()}
    inputs = GradientInputs(q[:, queries], k[:, kept], v[:, kept], grad_output[:, queries], options)
    part = replace(shape, hq=len(queries), hkv=len(kept))
    case = given(
        GivenHeads, inputs, "GRAD-3", part, dtype,
        kept=tuple(kept.tolist()), queries=tuple(queries.tolist()), whole=whole, **common,
    )  # fmt: skip
    note = f"key heads {runs(kept.tolist())} of {shape.hkv} with their query heads, every row, seed {seed}"
    return _Part(case, Reply("returned", dict(came)), note), tuple(kept.tolist())


def _heads_of(name: str, value: Any, queries: np.ndarray) -> Any:
    """A mask or bias for some query heads."""
    if name not in ("mask", "bias") or value.ndim < 3 or value.shape[-3] == 1:
        return value
    return np.take(value, queries, axis=-3)


def _layer(
    output: Any,
    x_q: Any,
    w_q: Any,
    w_k: Any,
    w_v: Any,
    *,
    heads: int,
    weights: Any = None,
    average_weights: bool = False,
    sequence_first: bool = False,
    is_causal: bool = False,
    pre_norm: bool = False,
    grad_output: Any = None,
    gradients: Mapping[str, Any] | None = None,
    profile: Profile | str | None = None,
    scale: float | None = None,
    epsilon: float | None = None,
    **options: Any,
) -> _Question:
    unknown = sorted(options.keys() - {"x_kv", "w_o", "b_q", "b_k", "b_v", "b_o", "mask", "bias", "kv_lengths", *_NORM})
    if unknown:
        raise TypeError(f"unexpected keyword {', '.join(unknown)}")
    arrays = {n: _array(n, a) for n, a in (("x_q", x_q), ("w_q", w_q), ("w_k", w_k), ("w_v", w_v))}
    keywords: dict[str, Any] = {n: _array(n, a) for n, a in options.items() if a is not None}
    dtype = _dtype(arrays | {n: a for n, a in keywords.items() if n not in ("mask", "kv_lengths", "bias")})
    _check_options(keywords, {})
    flags = {"sequence_first": sequence_first, "is_causal": is_causal, "pre_norm": pre_norm}
    keywords |= {"heads": heads, **{n: True for n, on in flags.items() if on}}
    keywords |= {n: float(x) for n, x in (("scale", scale), ("epsilon", epsilon)) if x is not None}
    normed = [n for n in (*_NORM, "epsilon") if n in keywords]
    if (normed or pre_norm) and len(normed) < 3:
        raise ValueError("a sub-layer is given gamma, beta and epsilon together")
    shape = _layer_shape(arrays, keywords, heads, sequence_first)
    came = {} if output is None else {"output": _array("output", output)}
    parts = []
    if weights is not None:
        came["weights"] = _array("weights", weights)
        keywords["return_weights"] = True
        keywords |= {"average_weights": True} if average_weights else {}
    kind, clause = (GivenSublayer, "SUB-3") if normed else (GivenMha, "MHA-12")
    if normed and "weights" in came:
        raise ValueError("a sub-layer returns no weights")
    if came:
        inputs = LayerInputs(**arrays, keywords=keywords)
        parts.append(_Part(given(kind, inputs, clause, shape, dtype, names=tuple(came)), Reply("returned", came)))
    if gradients:
        if grad_output is None or normed:
            raise ValueError("gradients need grad_output, and are those of the layer without normalisation")
        of = {n: x for n, x in keywords.items() if n not in ("return_weights", "average_weights")}
        layer = LayerGradientInputs(**arrays, grad_output=_array("grad_output", grad_output), keywords=of)
        grads = {f"grad_{n}": _array(f"grad_{n}", a) for n, a in gradients.items()}
        missing = sorted(n for n in gradients if n not in arrays and n not in of)
        if missing:
            raise ValueError(f"gradients of {', '.join(missing)}, which is not given")
        case = given(GivenMhaGradients, layer, "GRAD-20", shape, dtype, names=tuple(grads))
        parts.append(_Part(case, Reply("returned", grads)))
    for part in parts:
        part.case.expected(dtype)  # raises InvalidInput, a ValueError, for what does not fit together
    return _Question(tuple(parts), dtype, _profile(profile, dtype))


def _layer_shape(arrays: Mapping[str, np.ndarray], keywords: Mapping[str, Any], heads: int, first: bool) -> LayerShape:
    """Lengths and widths of a call.  Raises ValueError where ranks do not fit."""
    x_q, x_kv = arrays["x_q"], keywords.get("x_kv", arrays["x_q"])
    if x_q.ndim not in (2, 3) or x_kv.ndim != x_q.ndim or any(arrays[n].ndim != 2 for n in ("w_q", "w_k", "w_v")):
        raise ValueError("x_q and x_kv have 3 axes, or both 2, and weights have 2")
    if heads < 1:
        raise ValueError(f"heads is {heads}; there is at least one")
    (sq, b), (sk, _) = (
        (x.shape[0], 1) if x.ndim == 2 else x.shape[:2] if first else x.shape[1::-1] for x in (x_q, x_kv)
    )
    d, dv = arrays["w_q"].shape[1] // heads, arrays["w_v"].shape[1] // heads
    eo = keywords["w_o"].shape[-1] if "w_o" in keywords else arrays["w_v"].shape[1]
    return LayerShape(b, sq, sk, x_q.shape[-1], x_kv.shape[-1], heads, d, dv, eo, x_q.ndim == 2, first)


_NORM = ("gamma", "beta")


# From a question to a verdict.


@functools.cache
def _blas() -> ThreadpoolController:
    """NumPy's library of matrix products, and any other that was there first."""
    return ThreadpoolController().select(user_api="blas")


def _one_thread(decide: Callable[[_Question], T]) -> Callable[[_Question], T]:
    """The function with one thread in NumPy's products: they are small, and others spin between them.

    On two busy cores they took 9 s of processor time where one thread takes 2 s.
    """

    @functools.wraps(decide)
    def alone(question: _Question) -> T:
        __tracebackhide__ = True
        with _blas().limit(limits=1):
            return decide(question)

    return alone


@_one_thread
def _share(question: _Question) -> float:
    """The largest share; inf for a wrong form."""
    shares = [_judged(part, question)[0].share for part in question.parts]
    return max((float("inf") if s is None else s for s in shares), default=0.0)


@_one_thread
def _checked(question: _Question) -> Closeness:
    """What was found.  Raises NotClose."""
    __tracebackhide__ = True
    start = time.perf_counter()
    shares: dict[str, float] = {}
    for part in question.parts:
        result, finding, taken = _judged(part, question)
        if finding is not None:
            result, finding, taken = _judged(part, question, every_profile=True)  # says which profiles it keeps
            assert finding is not None  # which other profiles are kept decides nothing
            raise NotClose(part.case, taken, result, finding, part.note)
        for one in judge.comparisons(taken, part.case, question.dtype, question.profile):
            shares[one.name] = one.share
    share = max(shares.values(), default=0.0)
    seconds = time.perf_counter() - start
    return Closeness(share, shares, question.profile.value, question.rows, question.heads, seconds)


def _judged(part: _Part, question: _Question, *, every_profile: bool = False) -> tuple[Result, Finding | None, Reply]:
    """The judge's finding of a part, and the results that it looked at."""
    case, dtype = part.case, question.dtype
    blank = Result(
        "given", "cpu", dtype, case.name, case.clauses, Outcome.PASSED, profile=question.profile.value
    )  # fmt: skip
    shapes = getattr(case, "whole", None)
    if shapes:
        # Of the whole results, before a part of them is taken.
        form = _Shapes({n: np.broadcast_to(np.float64(0), shapes[n]) for n in case.results()})
        finding = judge.malformed(part.reply, case, form, dtype)
        if finding is not None:
            return blank, finding, part.reply
    taken = Reply("returned", {n: _taken(case, n, a) for n, a in part.reply.results.items()})
    taken = _without_open(case, taken, dtype)
    result, finding = judge.examined(taken, case, case.expected(dtype), blank, every_profile)
    return result, finding, taken


class _Shapes:
    """Arrays as attributes."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.__dict__.update(arrays)


def _taken(case: Any, name: str, array: np.ndarray) -> np.ndarray:
    """The part of a result that a case is about."""
    if isinstance(case, GivenRows) and name not in ("present_key", "present_value"):
        return array[:, :, list(case.rows)] if len(case.rows) < array.shape[2] else array
    if isinstance(case, GivenHeads):
        if name == "grad_bias":
            return _heads_of("bias", array, np.asarray(case.queries))
        return array[:, list(case.kept if name in ("grad_k", "grad_v") else case.queries)]
    return array


def _without_open(case: Any, reply: Reply, dtype: str) -> Reply:
    """What came, with the reference where no clause says MUST of a result that is not finite.

    That is NaN where a masked key holds NaN (SDPA-22 says SHOULD), and rows whose scores overflow the dtype (SDPA-26).
    """
    if not isinstance(case, GivenRows) or all(np.isfinite(a).all() for a in reply.results.values()):
        return reply
    results = {n: a.copy() for n, a in reply.results.items()}
    expected = case.expected(dtype)
    for found, _, (batch, heads, rows) in case.parts():
        with np.errstate(all="ignore"):
            far = np.where(found.allowed, np.maximum(np.abs(found.raw), np.abs(found.scores)), 0) > LARGEST[dtype]
        bad = np.isnan(found.k).any(3)[:, :, None] & ~found.allowed
        row = far.any(3) | bad.any(3)
        column = (~found.allowed).astype(float) @ np.isnan(found.v) > 0
        for name in results.keys() & {"output", "weights", "lse"}:
            got, open_ = results[name][batch, heads, rows], row if name == "lse" else row[..., None]
            open_ = open_ | column if name == "output" else open_
            wanted = getattr(expected, name)[batch, heads, rows].astype(got.dtype)
            results[name][batch, heads, rows] = np.where(open_ & ~np.isfinite(got), wanted, got)
    return Reply("returned", results)


# The diagnosis.


def _diagnosis(case: Any, reply: Reply, blank: Result, finding: Finding) -> tuple[str, list[str]]:
    """The clause that is broken, and the known mistake that gives these very results, on as much as is affordable."""
    import attention_conformance.conformance.faults  # noqa: F401  # registers them
    from attention_conformance.conformance.diagnosis.explain import explanation_text
    from attention_conformance.conformance.diagnosis.match import diagnose
    from attention_conformance.conformance.faults.trials import Failed

    if finding.failure is not Failure.VALUE or finding.broken == case.blame.accuracy:
        return finding.broken, []
    tried = _affordable(case, reply, blank.dtype)
    if tried is None:
        return finding.broken, ["Diagnosis: none tried on an input of this size; a shorter one that fails has one"]
    small, results = tried
    profile = Profile(str(blank.profile))
    compared = judge.comparisons(Reply("returned", results), small, blank.dtype, profile)
    if all(each.ok for each in compared):  # what is wrong lies in another part
        return finding.broken, []
    failed = Failed(small, blank.dtype, profile, Failure.VALUE, Reply("returned", results))
    found = diagnose([failed], [], pairs=False)
    if not found:
        return finding.broken, []
    return found[0].faults[0].clause, [f"Diagnosis: {explanation_text(found[0], 1)}"]


def _affordable(case: Any, reply: Reply, dtype: str) -> tuple[Any, dict[str, np.ndarray]] | None:
    """A case on which faults can be tried, with its results, or None: the whole call, if all its rows were checked."""
    complete = set(case.names) == set(OPERATORS[case.operator].returned(case.options))  # as faults return all
    sizes = case.shape.scores
    if not complete or isinstance(case, GivenHeads) or np.prod(sizes, dtype=float) > DIAGNOSED:
        return None
    if not isinstance(case, GivenRows):
        return case, dict(reply.results)
    if len(case.rows) < case.shape.sq:
        return None
    held = case.held
    bias = held.keywords.get("bias")
    if bias is not None and bias.dtype != held.q.dtype:
        held = replace(held, keywords={**held.keywords, "bias": bias.astype(NUMPY_DTYPES[dtype])})
    small = given(GivenSdpa, held, case.clauses[0], case.shape, dtype, names=case.names)
    return small, dict(reply.results)


__all__ = [
    "Closeness",
    "InvalidInput",
    "NotClose",
    "assert_close",
    "assert_layer_close",
    "error_share",
    "layer_error_share",
]
