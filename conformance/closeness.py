"""Closeness: whether results that somebody has are attention of their inputs, within the bound for these very inputs.

``assert_close`` stands in a test where ``allclose`` did, and has no tolerance to choose.  What decides is the judge of
the suite (judging/judge.py); here arrays become its case, long inputs are sampled, and its finding becomes an
``AssertionError``.  The diagnosis is made when the error's text is asked for, as it takes longer than the comparison.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

from attention_conformance.conformance.bounds.sdpa import LARGEST
from attention_conformance.conformance.cases.base import NUMPY_DTYPES
from attention_conformance.conformance.cases.data import Shape
from attention_conformance.conformance.cases.given import (
    GivenGradients,
    GivenHeads,
    GivenMerge,
    GivenMha,
    GivenMhaGradients,
    GivenPaged,
    GivenRows,
    GivenSdpa,
    GivenSublayer,
    GivenVarlen,
    given,
)
from attention_conformance.conformance.cases.layer import LayerShape
from attention_conformance.conformance.cases.merge import sizes
from attention_conformance.conformance.cases.packed import PackedShape, PagedShape
from attention_conformance.conformance.cases.parts import forms, odd_rows, part_of, query_heads, sample_heads
from attention_conformance.conformance.judging import judge
from attention_conformance.conformance.judging.judge import Finding
from attention_conformance.conformance.judging.message import clause_lines, inputs_line, runs
from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.spec import sdpa as reference
from attention_conformance.conformance.spec.inputs import (
    GradientInputs,
    Inputs,
    LayerGradientInputs,
    LayerInputs,
    MergeInputs,
    PackedInputs,
    PagedInputs,
)
from attention_conformance.conformance.spec.paged import check_pages, check_scale, in_order
from attention_conformance.conformance.spec.sdpa import InvalidInput
from attention_conformance.conformance.spec.varlen import check_packs
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

#: The same of packed sequences and of pages.
_PACKED_CLAUSES = {
    "varlen": {"": "VARLEN-2", "is_causal": "VARLEN-3", "window": "VARLEN-3"}
    | dict.fromkeys(("scale", "softcap", "sinks"), "VARLEN-5"),
    "paged": {"": "PAGED-2", "is_causal": "PAGED-3", "window": "PAGED-3", "k_new": "PAGED-11", "k_scale": "PAGED-14"}
    | dict.fromkeys(("scale", "softcap", "sinks"), "PAGED-8"),
}

#: Arguments that hold whole numbers, and may be lists.
_WHOLE_NUMBERS = ("causal_offset", "kv_lengths", "cu_seqlens_q", "cu_seqlens_k", "block_table")

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


def assert_varlen_close(
    output: Any, q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, *,
    is_causal: bool = False, causal_offset: Any = None, window: tuple[int | None, int | None] | None = None,
    scale: Any = None, softcap: Any = None, sinks: Any = None, lse: Any = None,
    profile: Profile | str | None = None, rows: int | None = None, seed: int = 0,
) -> Closeness:  # fmt: skip
    """Assert that ``output`` is attention of packed sequences, each within the bound for itself alone.

    Parameters
    ----------
    output
        (Tq, Hq, Dv).
    q, k, v
        (Tq, Hq, D), (Tk, Hkv, D) and (Tk, Hkv, Dv), of one dtype.
    cu_seqlens_q, cu_seqlens_k
        (N + 1,): sequence n has the rows from element n up to element n + 1.  Rows behind the last are not looked at.
    is_causal, causal_offset, window, scale, softcap, sinks
        As SPEC.md defines them for varlen: masks are aligned at the bottom right, by sequence; ``causal_offset``, one
        number or (N,), says otherwise.
    lse
        A further result, (Hq, Tq), in float32 or wider.
    profile
        As in ``assert_close``.
    rows
        Rows of the pack to check, each with all heads; by default all up to 2²⁰ scores, then as many as make up 2²⁰,
        8 at least.  First and last ones, those at boundaries of sequences and those that look odd are among them.
    seed
        Chooses the others.

    Returns
    -------
    Closeness

    Raises
    ------
    NotClose
        An AssertionError.
    TypeError, ValueError
        Where the inputs do not fit together, or the spec leaves the result open (VARLEN-12).
    """
    __tracebackhide__ = True
    given_arrays = {"q": q, "k": k, "v": v, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    options = {
        "is_causal": is_causal or None, "causal_offset": causal_offset, "window": window, "scale": scale,
        "softcap": softcap, "sinks": sinks,
    }  # fmt: skip
    return _checked(_packed(given_arrays, options, {"output": output, "lse": lse}, profile, rows, seed))


def assert_paged_close(
    output: Any, q: Any, k_cache: Any, v_cache: Any, cu_seqlens_q: Any, block_table: Any, kv_lengths: Any, *,
    k_new: Any = None, v_new: Any = None, k_scale: Any = None, v_scale: Any = None,
    is_causal: bool = False, causal_offset: Any = None,
    window: tuple[int | None, int | None] | None = None, scale: Any = None, softcap: Any = None, sinks: Any = None,
    lse: Any = None, profile: Profile | str | None = None, rows: int | None = None, seed: int = 0,
) -> Closeness:  # fmt: skip
    """Assert that ``output`` is attention of packed queries over keys and values in pages of a cache.

    Parameters
    ----------
    output, q
        (Tq, Hq, Dv) and (Tq, Hq, D).
    k_cache, v_cache
        (pages, page size, Hkv, D) and (pages, page size, Hkv, Dv), of the dtype of q; with scales in eight bits.
    cu_seqlens_q, block_table, kv_lengths
        (N + 1,), (N, most pages of a sequence) and (N,); lengths count the keys of the queries' own tokens.
    k_new, v_new
        (Tq, Hkv, D) and (Tq, Hkv, Dv): the keys and values of the queries' tokens, in place of what the cache has.
    k_scale, v_scale
        What the numbers of the caches are multiplied with, in float32, broadcastable to them (PAGED-14).
    is_causal, causal_offset, window, scale, softcap, sinks, lse, profile, rows, seed
        As in ``assert_varlen_close``.

    Returns
    -------
    Closeness

    Raises
    ------
    NotClose
        An AssertionError.
    TypeError, ValueError
        Where the inputs do not fit together, or the spec leaves the result open (PAGED-13).
    """
    __tracebackhide__ = True
    given_arrays = {
        "q": q, "k_cache": k_cache, "v_cache": v_cache, "cu_seqlens_q": cu_seqlens_q, "block_table": block_table,
        "kv_lengths": kv_lengths,
    }  # fmt: skip
    options = {
        "is_causal": is_causal or None, "causal_offset": causal_offset, "window": window, "scale": scale,
        "softcap": softcap, "sinks": sinks, "k_new": k_new, "v_new": v_new, "k_scale": k_scale,
        "v_scale": v_scale,
    }  # fmt: skip
    return _checked(_packed(given_arrays, options, {"output": output, "lse": lse}, profile, rows, seed))


def assert_merge_close(
    output: Any, outputs: Any, lses: Any, *,
    lse: Any = None, layout: Layout | str = Layout.BHSD, profile: Profile | str | None = None,
) -> Closeness:  # fmt: skip
    """Assert that ``output`` is that over all keys, of partial results over disjoint sets of keys.

    Parameters
    ----------
    output
        (B, H, S, Dv); without batch (H, S, Dv), and without heads too (S, Dv), as the others then.
    outputs, lses
        Of each part: a list of arrays like ``output`` and one of (B, H, S), or arrays with one axis more.  Log-sum-exps
        are natural, in float32 or wider, −inf where a part has no key.
    lse
        A further result, (B, H, S).
    layout
        "bhsd", or "bshd" for outputs (B, S, H, Dv).
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
        Where the inputs do not fit together, or the spec leaves the result open (MERGE-16).
    """
    __tracebackhide__ = True
    return _checked(_merge(output, outputs, lses, lse, layout, profile))


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
    if name in _WHOLE_NUMBERS and isinstance(array, int | list | tuple):
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


def _sample(
    length: int, wanted: int, output: np.ndarray, seed: int, boundaries: Sequence[int] | None = None
) -> np.ndarray:
    """Sorted rows: all, or the first, the last, odd ones, edges of tiles and random ones, ``wanted`` in all.

    ``boundaries``, where sequences begin, take the place of edges of tiles.
    """
    if length <= wanted:
        return np.arange(length)
    if wanted < 1:
        raise ValueError(f"rows is {wanted}; at least one is checked")
    rng = np.random.default_rng(seed)
    starts = boundaries or [first for tile in TILES for first in range(tile, length, tile)]
    edges = sorted({at for first in starts for at in (first - 1, first) if 0 <= at < length})
    fits = output.ndim == 4 and output.shape[2] == length and output.size
    odd = [row for _, _, row in odd_rows(output)] if fits else []
    chosen = [0, length - 1, *odd, *rng.permutation(edges)[: wanted // 4].tolist()]
    chosen += rng.permutation(length)[:wanted].tolist()
    return np.sort(list(dict.fromkeys(chosen))[: max(wanted, 2)])


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
    kept = sample_heads(shape.hkv, count, seed)
    queries = query_heads(kept, group)
    options = {n: part_of(n, x, queries=queries) for n, x in keywords.items()}
    inputs = GradientInputs(q[:, queries], k[:, kept], v[:, kept], grad_output[:, queries], options)
    part = replace(shape, hq=len(queries), hkv=len(kept))
    case = given(
        GivenHeads, inputs, "GRAD-3", part, dtype,
        kept=tuple(kept.tolist()), queries=tuple(queries.tolist()), whole=whole, **common,
    )  # fmt: skip
    note = f"key heads {runs(kept.tolist())} of {shape.hkv} with their query heads, every row, seed {seed}"
    return _Part(case, Reply("returned", dict(came)), note), tuple(kept.tolist())


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


def _packed(
    given_arrays: Mapping[str, Any],
    options: Mapping[str, Any],
    results: Mapping[str, Any],
    profile: Profile | str | None,
    wanted: int | None,
    seed: int,
) -> _Question:
    """Of varlen, or with a block table of paged: rows of the pack, each as one of sdpa over its own keys."""
    arrays = {name: _array(name, array) for name, array in given_arrays.items()}
    keys, values = ("k_cache", "v_cache") if "block_table" in arrays else ("k", "v")
    new = {n: _array(n, options[n]) for n in ("k_new", "v_new") if options.get(n) is not None}
    scales = {n: _array(n, options[n]) for n in ("k_scale", "v_scale") if options.get(n) is not None}
    stored = {} if scales else {n: arrays[n] for n in (keys, values)}
    dtype = _dtype({"q": arrays["q"]} | stored | new)
    came = {name: _array(name, array) for name, array in results.items() if array is not None}
    keywords: dict[str, Any] = {}
    keywords |= {n: _array(n, options[n]) for n in ("causal_offset", "sinks") if options[n] is not None}
    keywords |= {n: float(options[n]) for n in ("scale", "softcap") if options[n] is not None}
    keywords |= {n: options[n] for n in ("is_causal", "window") if options[n] is not None}
    _check_options(keywords, {})
    for name in arrays.keys() & set(_WHOLE_NUMBERS):
        if arrays[name].dtype.kind not in "iu":
            raise TypeError(f"{name} is {arrays[name].dtype}; it holds integers")
    own = _Pages(arrays, new, scales) if "block_table" in arrays else _Pack(arrays)
    offsets = keywords.get("causal_offset")
    if offsets is not None and offsets.size not in (1, own.count):
        raise ValueError(f"causal_offset has {offsets.size} entries, and there are {own.count} sequences")
    (total, hq, d), hkv, dv = arrays["q"].shape, arrays[keys].shape[-2], arrays[values].shape[-1]
    whole = {"output": (total, hq, dv), "lse": (hq, total)}
    scores = hq * int(np.dot(own.queries, own.keys))
    if wanted is None:
        wanted = total if scores <= WHOLE else max(FEWEST_ROWS, WHOLE * total // scores)
    looked = came["output"].swapaxes(0, 1)[None] if came["output"].ndim == 3 else came["output"]
    rows = _sample(total, wanted, looked, seed, own.cu_seqlens_q.tolist())
    names, clauses = tuple(came), _PACKED_CLAUSES[own.operator]
    sequences = []
    for n in range(own.count):
        start, end = (int(each) for each in own.cu_seqlens_q[n : n + 2])
        mine = rows[(rows >= start) & (rows < end)]
        if mine.size:
            q, (k, v) = arrays["q"][start:end], own.of(n)
            call = {name: each.swapaxes(0, 1)[None] for name, each in (("q", q), ("k", k), ("v", v))}
            asked = {name: value for name, value in keywords.items() if name != "causal_offset"}
            if scales:  # then keys and values are in float64, and all have one dtype
                call["q"] = call["q"].astype(np.float64)
                asked |= {"sinks": keywords["sinks"].astype(np.float64)} if "sinks" in keywords else {}
            if asked.keys() & {"is_causal", "window"}:  # VARLEN-3
                at = len(k) - len(q) if offsets is None else int(offsets.reshape(-1)[n % offsets.size])
                asked["causal_offset"] = at
            _check_fit(call, asked)
            asked |= {"return_lse": True} if "lse" in came else {}
            shape = Shape(1, hq, hkv, len(q), len(k), d, dv)
            places = tuple((mine - start).tolist())
            one = given(
                GivenRows, Inputs(**call, keywords=asked), "SDPA-16", shape, dtype,
                rows=places, whole=_shapes(shape), names=names, quantised=bool(scales),
            )  # fmt: skip
            sequences.append((one, tuple(mine.tolist())))
    kind, held, sizes_of = own.made_of
    packed = sizes_of(tuple(own.queries.tolist()), tuple(own.keys.tolist()), hq, hkv, d, dv)
    keywords |= new | scales | ({"return_lse": True} if "lse" in came else {})
    found = {clauses[name] for name in keywords if name in clauses}
    clause = found.pop() if len(found) == 1 else clauses[""]
    case = given(
        kind, held(**arrays, keywords=keywords), clause, packed, dtype,
        names=names, sequences=tuple(sequences), whole=whole,
    )  # fmt: skip
    note = ""
    if len(rows) < total:
        note = f"{len(rows)} of {total} rows, each with every head, seed {seed}: {runs(rows.tolist())}"
    checked = case.rows if note else None
    return _Question((_Part(case, Reply("returned", came), note),), dtype, _profile(profile, dtype), checked)


class _Pack:
    """The sequences of a pack: how many queries and keys each has, and its keys and values.

    Raises ValueError where arrays do not fit together, or boundaries are those that VARLEN-12 leaves open.
    """

    operator: ClassVar[str] = "varlen"
    #: Of its case: the case itself, its inputs, and its sizes.
    made_of: ClassVar[tuple[type, Any, Any]] = (GivenVarlen, PackedInputs, PackedShape)

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.arrays, self.cu_seqlens_q = arrays, arrays["cu_seqlens_q"]
        self._check()
        self.queries = np.diff(self.cu_seqlens_q.astype(np.int64))
        self.keys = self._lengths()
        self.count = len(self.queries)

    def _check(self) -> None:
        check_packs(**self.arrays)
        self._boundaries("cu_seqlens_q", len(self.arrays["q"]))
        self._boundaries("cu_seqlens_k", len(self.arrays["k"]))

    def _boundaries(self, name: str, rows: int) -> None:
        found = self.arrays[name]
        if found.ndim != 1 or not found.size or found[0] != 0 or (found[1:] < found[:-1]).any() or found[-1] > rows:
            raise ValueError(f"{name} is {found.tolist()}; it begins with 0, never falls, and ends within {rows} rows")

    def _lengths(self) -> np.ndarray:
        return np.diff(self.arrays["cu_seqlens_k"].astype(np.int64))

    def of(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys (Sk, Hkv, D) and values of a sequence."""
        rows = slice(*self.arrays["cu_seqlens_k"][n : n + 2].tolist())
        return self.arrays["k"][rows], self.arrays["v"][rows]


class _Pages(_Pack):
    """The same of pages."""

    operator = "paged"
    made_of = (GivenPaged, PagedInputs, PagedShape)

    def __init__(
        self, arrays: Mapping[str, np.ndarray], new: Mapping[str, np.ndarray], scales: Mapping[str, np.ndarray]
    ) -> None:
        self.new = new
        self.scales: dict[str, Any] = {n: scales.get(n) for n in ("k_scale", "v_scale")} if scales else {}
        super().__init__(arrays)

    def _check(self) -> None:
        check_pages(**self.arrays)
        for name, scale in self.scales.items():
            check_scale(self.arrays[f"{name[0]}_cache"], scale)
        self._boundaries("cu_seqlens_q", len(self.arrays["q"]))
        table, lengths, cache = self.arrays["block_table"], self._lengths(), self.arrays["k_cache"]
        if table.ndim != 2 or lengths.ndim != 1:
            raise ValueError(
                f"block_table has shape {table.shape}, kv_lengths {lengths.shape}; they are (N, M) and (N,)"
            )
        pages = -(-lengths // cache.shape[1])
        if (lengths < 0).any() or (pages > table.shape[1]).any():
            raise ValueError(f"kv_lengths are {lengths.tolist()}; a row of the table has {table.shape[1]} pages")
        used = table[np.arange(table.shape[1]) < pages[:, None]]
        if ((used < 0) | (used >= len(cache))).any():
            raise ValueError(f"block_table names pages beyond the {len(cache)} of the cache")
        if self.new:
            self._check_new(np.diff(self.arrays["cu_seqlens_q"].astype(np.int64)), lengths)

    def _check_new(self, queries: np.ndarray, lengths: np.ndarray) -> None:
        wanted = {n: (len(self.arrays["q"]), *self.arrays[f"{n[0]}_cache"].shape[2:]) for n in ("k_new", "v_new")}
        if {n: a.shape for n, a in self.new.items()} != wanted:
            raise ValueError(f"k_new and v_new come together, of shapes {wanted['k_new']} and {wanted['v_new']}")
        if (queries > lengths).any():
            raise ValueError("a sequence has more new keys than keys")

    def _lengths(self) -> np.ndarray:
        return self.arrays["kv_lengths"].astype(np.int64)

    def of(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys (Sk, Hkv, D) and values of a sequence, new ones among them."""
        found = []
        for name in ("k", "v"):
            cache, table, length = self.arrays[f"{name}_cache"], self.arrays["block_table"][n], int(self.keys[n])
            own = in_order(cache, table, length)
            if self.scales:
                scale = np.broadcast_to(self.scales[f"{name}_scale"], cache.shape)
                own = own.astype(np.float64) * in_order(scale, table, length).astype(np.float64)
            if self.new and self.queries[n]:
                own[-self.queries[n] :] = self.new[f"{name}_new"][slice(*self.cu_seqlens_q[n : n + 2].tolist())]
            found.append(own)
        return found[0], found[1]


def _merge(
    output: Any, outputs: Any, lses: Any, lse: Any, layout: Layout | str, profile: Profile | str | None
) -> _Question:
    """Of merge."""
    parts = {
        name: [_array(name, each) for each in given_parts] if isinstance(given_parts, list | tuple)
        else list(_array(name, given_parts))
        for name, given_parts in (("outputs", outputs), ("lses", lses))
    }  # fmt: skip
    if not parts["outputs"] or len(parts["outputs"]) != len(parts["lses"]):
        raise ValueError(
            f"there are {len(parts['outputs'])} outputs and {len(parts['lses'])} lses; as many, one at least"
        )
    form = _Form(_layout(layout), 4 - parts["outputs"][0].ndim)
    dtype = _dtype({f"outputs[{at}]": each for at, each in enumerate(parts["outputs"])})
    for each in parts["lses"]:
        if str(each.dtype) not in ("float32", "float64"):
            raise TypeError(f"lses are {each.dtype}; they are float32 or float64")
    if len({(a.shape, b.shape) for a, b in zip(parts["outputs"], parts["lses"], strict=True)}) > 1:
        raise ValueError("the parts differ in shape")
    states = np.stack([form.four("outputs", each) for each in parts["outputs"]])
    logs = np.stack([form.result("lse", each) for each in parts["lses"]])
    inputs = MergeInputs(states, logs)
    used = states[~np.isneginf(logs)] if logs.shape == states.shape[:-1] else states
    if np.isposinf(logs).any() or not np.isfinite(used).all():
        raise ValueError("lses have +inf, or outputs NaN or infinities beside them; MERGE-16 leaves the result open")
    results = {"output": output} | ({} if lse is None else {"lse": lse})
    came = {name: form.result(name, _array(name, array)) for name, array in results.items()}
    (count, b, h, s, dv), axes = states.shape, {"dropped": form.dropped, "heads_inside": form.layout is Layout.BSHD}
    case = given(GivenMerge, inputs, "MERGE-2", sizes(b, h, s, dv, count), dtype, names=tuple(came), **axes)
    case.expected(dtype)  # raises InvalidInput, a ValueError, for what does not fit together
    return _Question((_Part(case, Reply("returned", came)),), dtype, _profile(profile, dtype))


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
        form = forms({n: shapes[n] for n in case.results()})
        finding = judge.malformed(part.reply, case, form, dtype)
        if finding is not None:
            return blank, finding, part.reply
    taken = Reply("returned", {n: _taken(case, n, a) for n, a in part.reply.results.items()})
    taken = _without_open(case, taken, dtype)
    result, finding = judge.examined(taken, case, case.expected(dtype), blank, every_profile)
    return result, finding, taken


def _taken(case: Any, name: str, array: np.ndarray) -> np.ndarray:
    """The part of a result that a case is about."""
    if isinstance(case, GivenRows) and name not in ("present_key", "present_value"):
        return array[:, :, list(case.rows)] if len(case.rows) < array.shape[2] else array
    if isinstance(case, GivenVarlen):
        return array[list(case.rows)] if name == "output" else array[:, list(case.rows)]
    if isinstance(case, GivenHeads):
        if name == "grad_bias":
            return part_of("bias", array, queries=np.asarray(case.queries))
        return array[:, list(case.kept if name in ("grad_k", "grad_v") else case.queries)]
    return array


def _without_open(case: Any, reply: Reply, dtype: str) -> Reply:
    """What came, with the reference where no clause says MUST of a result that is not finite.

    That is NaN where a masked key holds NaN (SDPA-22 says SHOULD), rows whose scores overflow the dtype (SDPA-26), and
    NaN of what is nobody's or another's (VARLEN-13, PAGED-5, MERGE-7).
    """
    opened = _OPENED.get(type(case))
    if opened is None or all(np.isfinite(a).all() for a in reply.results.values()):
        return reply
    results = {n: a.copy() for n, a in reply.results.items()}
    opened(case, results, case.expected(dtype), dtype)
    return Reply("returned", results)


def _open_rows(case: GivenRows, results: Mapping[str, np.ndarray], expected: Any, dtype: str) -> None:
    for found, _, (batch, heads, rows) in case.parts():
        with np.errstate(all="ignore"):
            far = np.where(found.allowed, np.maximum(np.abs(found.raw), np.abs(found.scores)), 0) > LARGEST[dtype]
        bad = np.isnan(found.k).any(3)[:, :, None] & ~found.allowed
        row = far.any(3) | bad.any(3)
        column = (~found.allowed).astype(float) @ np.isnan(found.v) > 0
        for name in results.keys() & {"output", "weights", "lse"}:
            got, open_ = results[name][batch, heads, rows], row if name == "lse" else row[..., None]
            open_ = open_ | column if name == "output" else open_
            _fill(got, open_, getattr(expected, name)[batch, heads, rows])


def _open_pack(case: GivenVarlen, results: Mapping[str, np.ndarray], expected: Any, dtype: str) -> None:
    arrays, done = case.held.arrays, 0
    for one, rows in case.sequences:
        taken = slice(done, done := done + len(rows))
        views = {n: (a[taken].swapaxes(0, 1) if n == "output" else a[:, taken])[None] for n, a in results.items()}
        _open_rows(one, views, one.expected(dtype), dtype)
        held = one.held
        for name, own in ((n, held.arrays[n[0]]) for n in arrays if n in ("k", "v", "k_cache", "v_cache")):
            if np.count_nonzero(~np.isfinite(arrays[name])) > np.count_nonzero(~np.isfinite(own)):  # another's
                for result, view in views.items():
                    _fill(view, np.broadcast_to(True, view.shape), getattr(one.expected(dtype), result))


def _open_merge(case: GivenMerge, results: Mapping[str, np.ndarray], expected: Any, dtype: str) -> None:
    nobody = np.isneginf(case.held.lses)[..., None] & ~np.isfinite(case.held.outputs)
    _fill(results["output"], nobody.any(0), expected.output)


_OPENED: dict[type, Callable[..., None]] = {
    GivenRows: _open_rows,
    GivenVarlen: _open_pack,
    GivenPaged: _open_pack,
    GivenMerge: _open_merge,
}


def _fill(got: np.ndarray, open_: np.ndarray, wanted: np.ndarray) -> None:
    """Write what is wanted where a result is open and not finite."""
    got[...] = np.where(open_ & ~np.isfinite(got), wanted.astype(got.dtype), got)


# The diagnosis.


def _scores(case: Any) -> float:
    """How many scores a call has, or what a merge has in their place."""
    if isinstance(case, GivenVarlen):
        return float(case.shape.hq * np.dot(case.shape.q_lengths, case.shape.k_lengths))
    return float(np.prod(case.held.outputs.shape if isinstance(case, GivenMerge) else case.shape.scores, dtype=float))


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
    if not complete or isinstance(case, GivenHeads) or _scores(case) > DIAGNOSED:
        return None
    if isinstance(case, GivenVarlen):
        if case.rows != tuple(range(case.whole["output"][0])):
            return None
        held = replace(case.held, keywords=case.held.keywords | case.shape.options)
        return given(type(case), held, case.clauses[0], case.shape, dtype, names=case.names), dict(reply.results)
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
    "assert_merge_close",
    "assert_paged_close",
    "assert_varlen_close",
    "error_share",
    "layer_error_share",
]
