"""Closeness: whether given results are attention of their inputs, within the error bound for these very inputs.

``assert_close`` replaces ``allclose`` in a test and needs no tolerance.  The suite's judge (judging/judge.py) decides;
calls/ turns arrays into its case and samples long inputs, and this module turns its finding into an
``AssertionError``.  The diagnosis takes longer than the comparison, so it is made only when the error's text is read.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from attention_conformance.conformance.calls.arrays import Array, Number, WholeNumbers, Window, layout_of
from attention_conformance.conformance.calls.attention import attention
from attention_conformance.conformance.calls.diagnosed import diagnosed
from attention_conformance.conformance.calls.latent import latent
from attention_conformance.conformance.calls.layer import layer
from attention_conformance.conformance.calls.merge import merge
from attention_conformance.conformance.calls.packed import packed
from attention_conformance.conformance.calls.question import Part, Question
from attention_conformance.conformance.calls.taken import part_in_question, without_open
from attention_conformance.conformance.cases.parts import forms
from attention_conformance.conformance.judging import judge
from attention_conformance.conformance.judging.compare import Comparison
from attention_conformance.conformance.judging.judge import Finding
from attention_conformance.conformance.judging.message import clause_lines, inputs_line
from attention_conformance.conformance.judging.outcomes import Outcome, Result
from attention_conformance.conformance.spec.sdpa import InvalidInput
from attention_conformance.impls.calls import Reply
from attention_conformance.impls.contract import Layout, Profile
from attention_conformance.impls.loading import nearest
from attention_conformance.impls.process.threads import blas

T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True)
class Closeness:
    """Closeness of results to what the spec defines.

    Attributes
    ----------
    share
        The largest error/bound of all results, at most 1.
    shares
        The largest error/bound of each result, by name.
    profile
        The intermediate results that were allowed to be rounded: "wide", "fused", "storage" or "tf32".
    rows
        The query rows that were checked; None for all of them.
    heads
        The key heads whose gradients were checked; None for all of them.
    seconds
        Duration of the comparison.
    """

    share: float
    shares: Mapping[str, float]
    profile: str
    rows: tuple[int, ...] | None
    heads: tuple[int, ...] | None
    seconds: float


class NotClose(AssertionError):
    """Results that are not attention of their inputs; the text says which clause is broken, where, and what they equal.

    Attributes
    ----------
    share
        The largest error/bound; inf for a wrong shape, a wrong dtype, or NaN where a number was expected.
    failure
        "value", "shape" or "dtype".
    result
        The name of the wrong result, such as "output" or "grad_q".
    clause
        The broken clause of SPEC.md: the clause of the known mistake that the result equals, if there is one.
        Reading it tries the known mistakes.
    message
        The whole text; reading it tries them too.
    """

    def __init__(
        self, case: Any, reply: Reply, blank: Result, finding: Finding, note: str, hint: Callable[[], str] = str
    ) -> None:
        super().__init__(finding.reason)
        self._case, self._reply, self._blank, self._finding, self._note = case, reply, blank, finding, note
        self._hint = hint
        self.share = float("inf") if blank.share is None else blank.share
        self.failure = finding.failure.value
        self.result = finding.reason.rpartition(": ")[2].split()[0]

    @functools.cached_property
    def _explained(self) -> tuple[str, list[str]]:
        """The clause, and the lines of a diagnosis, or a hint that makes a diagnosis needless."""
        hint = self._hint()
        if hint:
            return self._finding.broken, [f"Hint:     {hint}"]
        return diagnosed(self._case, self._reply, self._blank, self._finding)

    @property
    def clause(self) -> str:
        """The broken clause: the clause of the known mistake that the result equals, if there is one."""
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

    def __reduce__(self) -> Any:  # sent to another process as text only
        return AssertionError, (self.message,)


def _nearest_named(function: Callable[P, T]) -> Callable[P, T]:
    """The function, with a TypeError for an unknown keyword that names the nearest known one."""
    parameters = inspect.signature(function).parameters.values()
    known = [each.name for each in parameters]
    optional = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]

    @functools.wraps(function)
    def named(*arguments: P.args, **keywords: P.kwargs) -> T:
        __tracebackhide__ = True
        for name in keywords:
            if name not in known:
                raise TypeError(f"{function.__name__} has no option {name!r}{nearest(name, optional)}")
        return function(*arguments, **keywords)

    return named


@_nearest_named
def assert_close(
    output: Array | None,
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Array | None = None,
    bias: Array | None = None,
    is_causal: bool = False,
    causal_offset: WholeNumbers | None = None,
    window: Window | None = None,
    kv_lengths: WholeNumbers | None = None,
    scale: Number | None = None,
    softcap: Number | None = None,
    sinks: Array | None = None,
    alibi_slopes: Array | None = None,
    head_scale: Array | None = None,
    rotary_cos: Array | None = None,
    rotary_sin: Array | None = None,
    rotary_interleaved: bool = False,
    block_mask: Array | None = None,
    block_size: tuple[int, int] | None = None,
    tree_parents: WholeNumbers | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    weights: Array | None = None,
    lse: Array | None = None,
    present_key: Array | None = None,
    present_value: Array | None = None,
    grad_output: Array | None = None,
    grad_q: Array | None = None,
    grad_k: Array | None = None,
    grad_v: Array | None = None,
    grad_bias: Array | None = None,
    profile: Profile | str | None = None,
    layout: Layout | str = Layout.BHSD,
    rows: int | None = None,
    seed: int = 0,
) -> Closeness:
    """Assert that ``output`` is attention of q, k and v, within the error bound for this very input.

    Parameters
    ----------
    output
        (B, Hq, Sq, Dv), of any framework and on any device, like all arrays here; None to check only other results.
    q, k, v
        (B, Hq, Sq, D), (B, Hkv, Sk, D) and (B, Hkv, Sk, Dv), of one dtype: float64, float32, float16 or bfloat16.
        Without batch (Hq, Sq, D), without heads too (Sq, D); the results then have the same axes.
    mask
        Boolean, True where a key takes part; broadcast to (B, Hq, Sq, Sk).
    bias
        Numbers added to the scores; broadcast to (B, Hq, Sq, Sk).
    is_causal
        Whether a query sees no later key.  Causal masks are aligned at the top left: query i sees keys up to i.
    causal_offset
        Moves that limit to i + ``causal_offset``, one number or (B,); ``Sk - Sq`` aligns at the bottom right.
    window
        Numbers of keys that a query sees to the left and right of its own, None for an open side.
    kv_lengths
        (B,): how many of a batch's keys take part, counted from the first.
    scale
        Factor of the scores; by default 1/√D.
    softcap
        Scores become ``softcap * tanh(scores / softcap)``.
    sinks
        (Hq,): a logit of each head that takes part in the softmax and has no value.
    alibi_slopes, head_scale
        (Hq,): by how much a score falls per key of distance, and a factor on each head's scale.
    rotary_cos, rotary_sin, rotary_interleaved
        (P, W / 2): cosines and sines of the angles that rotate q and k; whether columns 2d and 2d + 1 are a pair.
    block_mask, block_size
        Boolean (…, ⌈Sq / bq⌉, ⌈Sk / bk⌉), and (bq, bk): True where the keys of a block take part for its rows.
    tree_parents
        (Sq,) or (B, Sq): the parent of each row in a tree of draft tokens, −1 for none.  Rows are at the keys from
        ``causal_offset`` or the end of the past on; they see the keys before the tree, their ancestors' and their own.
    past_key, past_value
        (B, Hkv, Sp, D) and (B, Hkv, Sp, Dv): keys and values before k and v.
    weights, lse
        Further results of the same call, (B, Hq, Sq, Sk) and (B, Hq, Sq), the latter in float32 or wider.
    present_key, present_value
        Further results of a call with past keys, (B, Hkv, Sk, D) and (B, Hkv, Sk, Dv).
    grad_output
        The gradient of a loss with respect to the output, (B, Hq, Sq, Dv).
    grad_q, grad_k, grad_v, grad_bias
        Gradients to check, each in the shape of its input; they need ``grad_output``.
    profile
        "wide", "fused", "storage" or "tf32": which intermediate results may be rounded (SPEC.md, SDPA-25).  By
        default the profile of an ordinary plug-in: wide in float32 and float64, storage in float16 and bfloat16.
    layout
        "bhsd", or "bshd" for (B, S, H, D), as flash-attention and JAX have it.
    rows
        Number of query rows of every head to check; by default all up to 2²⁰ scores (B · Hq · Sq · Sk), beyond that as
        many as make up 2²⁰, at least 8.  First and last rows, edges of tiles and odd-looking rows are always included.
    seed
        Seed that chooses the other rows.

    Returns
    -------
    Closeness
        The share of the bound that is used, what was checked, and seconds.

    Raises
    ------
    NotClose
        An AssertionError.
    TypeError
        For an unknown option, for something that is no array, or for a dtype without bounds.
    ValueError
        Where the inputs do not fit together, or the spec leaves the result open (SDPA-37, GRAD-15).
    """
    __tracebackhide__ = True
    ask = functools.partial(
        attention, output, q, k, v,
        mask=mask, bias=bias, is_causal=is_causal, causal_offset=causal_offset, window=window,
        kv_lengths=kv_lengths, scale=scale, softcap=softcap, sinks=sinks,
        alibi_slopes=alibi_slopes, head_scale=head_scale, rotary_cos=rotary_cos,
        rotary_sin=rotary_sin, rotary_interleaved=rotary_interleaved, block_mask=block_mask, block_size=block_size,
        tree_parents=tree_parents, past_key=past_key, past_value=past_value,
        weights=weights, lse=lse, present_key=present_key, present_value=present_value,
        grad_output=grad_output, grad_q=grad_q, grad_k=grad_k, grad_v=grad_v, grad_bias=grad_bias,
        profile=profile, rows=rows, seed=seed,
    )  # fmt: skip
    return _raise_unless_close_in(ask, layout)


@_nearest_named
def error_share(
    output: Array | None,
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Array | None = None,
    bias: Array | None = None,
    is_causal: bool = False,
    causal_offset: WholeNumbers | None = None,
    window: Window | None = None,
    kv_lengths: WholeNumbers | None = None,
    scale: Number | None = None,
    softcap: Number | None = None,
    sinks: Array | None = None,
    alibi_slopes: Array | None = None,
    head_scale: Array | None = None,
    rotary_cos: Array | None = None,
    rotary_sin: Array | None = None,
    rotary_interleaved: bool = False,
    block_mask: Array | None = None,
    block_size: tuple[int, int] | None = None,
    tree_parents: WholeNumbers | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    weights: Array | None = None,
    lse: Array | None = None,
    present_key: Array | None = None,
    present_value: Array | None = None,
    grad_output: Array | None = None,
    grad_q: Array | None = None,
    grad_k: Array | None = None,
    grad_v: Array | None = None,
    grad_bias: Array | None = None,
    profile: Profile | str | None = None,
    layout: Layout | str = Layout.BHSD,
    rows: int | None = None,
    seed: int = 0,
) -> float:
    """The largest error/bound of results of a call of sdpa, without an assertion.

    Parameters
    ----------
    output, q, k, v
        As in ``assert_close``.
    mask, bias, is_causal, causal_offset, window, kv_lengths, scale, softcap, sinks, alibi_slopes, head_scale
        The call, as in ``assert_close``.
    rotary_cos, rotary_sin, rotary_interleaved, block_mask, block_size, tree_parents, past_key, past_value
        The call, as in ``assert_close``.
    weights, lse, present_key, present_value, grad_output, grad_q, grad_k, grad_v, grad_bias
        Further results, as in ``assert_close``.
    profile, layout, rows, seed
        As in ``assert_close``.

    Returns
    -------
    float
        The share: at most 1 where ``assert_close`` with the same arguments passes; inf for a wrong shape or dtype, and
        for NaN where a number was expected.

    Raises
    ------
    TypeError, ValueError
        As ``assert_close`` does.
    """
    return _share(attention(
        output, q, k, v,
        mask=mask, bias=bias, is_causal=is_causal, causal_offset=causal_offset, window=window,
        kv_lengths=kv_lengths, scale=scale, softcap=softcap, sinks=sinks,
        alibi_slopes=alibi_slopes, head_scale=head_scale, rotary_cos=rotary_cos,
        rotary_sin=rotary_sin, rotary_interleaved=rotary_interleaved, block_mask=block_mask, block_size=block_size,
        tree_parents=tree_parents, past_key=past_key, past_value=past_value,
        weights=weights, lse=lse, present_key=present_key, present_value=present_value,
        grad_output=grad_output, grad_q=grad_q, grad_k=grad_k, grad_v=grad_v, grad_bias=grad_bias,
        profile=profile, layout=layout, rows=rows, seed=seed,
    ))  # fmt: skip


@_nearest_named
def assert_layer_close(
    output: Array | None,
    x_q: Array,
    w_q: Array,
    w_k: Array,
    w_v: Array,
    *,
    heads: int,
    x_kv: Array | None = None,
    w_o: Array | None = None,
    b_q: Array | None = None,
    b_k: Array | None = None,
    b_v: Array | None = None,
    b_o: Array | None = None,
    mask: Array | None = None,
    bias: Array | None = None,
    is_causal: bool = False,
    kv_lengths: WholeNumbers | None = None,
    scale: float | None = None,
    sequence_first: bool = False,
    weights: Array | None = None,
    average_weights: bool = False,
    gamma: Array | None = None,
    beta: Array | None = None,
    epsilon: float | None = None,
    pre_norm: bool = False,
    grad_output: Array | None = None,
    gradients: Mapping[str, Array] | None = None,
    profile: Profile | str | None = None,
) -> Closeness:
    """Assert that ``output`` is multi-head attention, or the sub-layer, of its inputs, within the bound for them.

    Parameters
    ----------
    output
        (B, Sq, Eo); None to check only other results.
    x_q, w_q, w_k, w_v
        (B, Sq, E), (E, H · D), (Ekv, H · D) and (Ekv, H · Dv).  Projections are x @ w + b, so the weight of a
        ``torch.nn.Linear`` is given transposed.
    heads
        Number of heads, H.
    x_kv
        (B, Sk, Ekv), the input of keys and values; by default ``x_q``.
    w_o
        (H · Dv, Eo), the projection of the output; by default there is none.
    b_q, b_k, b_v, b_o
        Biases of the projections, as long as the results are wide.
    mask, bias
        Boolean, True where a key takes part, and numbers added to the scores; both broadcast to (B, H, Sq, Sk).
    is_causal
        Whether a query sees no later key, aligned at the top left.
    kv_lengths
        (B,): how many of a batch's keys take part, counted from the first.
    scale
        Factor of the scores; by default 1/√D.
    sequence_first
        Inputs and output are (S, B, E).
    weights, average_weights
        A second result, (B, H, Sq, Sk), and whether it is the mean over the heads, (B, Sq, Sk).
    gamma, beta, epsilon, pre_norm
        Parameters of the sub-layer: with them the output is LayerNorm(x + mha(x)), or x + mha(LayerNorm(x)) with
        ``pre_norm``.
    grad_output, gradients
        The gradient of a loss with respect to the output, and the gradients to check, by the input that they belong to:
        ``{"x_q": …, "w_o": …}``; not for the sub-layer.
    profile
        As in ``assert_close``.

    Returns
    -------
    Closeness
        The share of the bound that is used, and seconds.

    Raises
    ------
    NotClose
        An AssertionError.
    TypeError
        For an unknown option, for something that is no array, or for a dtype without bounds.
    ValueError
        Where the inputs do not fit together.
    """
    __tracebackhide__ = True
    return _raise_unless_close(layer(
        output, x_q, w_q, w_k, w_v, heads=heads,
        x_kv=x_kv, w_o=w_o, b_q=b_q, b_k=b_k, b_v=b_v, b_o=b_o, mask=mask, bias=bias, is_causal=is_causal,
        kv_lengths=kv_lengths, scale=scale, sequence_first=sequence_first, weights=weights,
        average_weights=average_weights, gamma=gamma, beta=beta, epsilon=epsilon, pre_norm=pre_norm,
        grad_output=grad_output, gradients=gradients, profile=profile,
    ))  # fmt: skip


@_nearest_named
def layer_error_share(
    output: Array | None,
    x_q: Array,
    w_q: Array,
    w_k: Array,
    w_v: Array,
    *,
    heads: int,
    x_kv: Array | None = None,
    w_o: Array | None = None,
    b_q: Array | None = None,
    b_k: Array | None = None,
    b_v: Array | None = None,
    b_o: Array | None = None,
    mask: Array | None = None,
    bias: Array | None = None,
    is_causal: bool = False,
    kv_lengths: WholeNumbers | None = None,
    scale: float | None = None,
    sequence_first: bool = False,
    weights: Array | None = None,
    average_weights: bool = False,
    gamma: Array | None = None,
    beta: Array | None = None,
    epsilon: float | None = None,
    pre_norm: bool = False,
    grad_output: Array | None = None,
    gradients: Mapping[str, Array] | None = None,
    profile: Profile | str | None = None,
) -> float:
    """The largest error/bound of results of a layer, without an assertion.

    Parameters
    ----------
    output, x_q, w_q, w_k, w_v, heads
        As in ``assert_layer_close``.
    x_kv, w_o, b_q, b_k, b_v, b_o, mask, bias, is_causal, kv_lengths, scale, sequence_first
        The call, as in ``assert_layer_close``.
    weights, average_weights, gamma, beta, epsilon, pre_norm, grad_output, gradients, profile
        Further results and parameters, as in ``assert_layer_close``.

    Returns
    -------
    float
        The share: at most 1 where ``assert_layer_close`` with the same arguments passes; inf for a wrong shape or
        dtype, and for NaN where a number was expected.

    Raises
    ------
    TypeError, ValueError
        As ``assert_layer_close`` does.
    """
    return _share(layer(
        output, x_q, w_q, w_k, w_v, heads=heads,
        x_kv=x_kv, w_o=w_o, b_q=b_q, b_k=b_k, b_v=b_v, b_o=b_o, mask=mask, bias=bias, is_causal=is_causal,
        kv_lengths=kv_lengths, scale=scale, sequence_first=sequence_first, weights=weights,
        average_weights=average_weights, gamma=gamma, beta=beta, epsilon=epsilon, pre_norm=pre_norm,
        grad_output=grad_output, gradients=gradients, profile=profile,
    ))  # fmt: skip


@_nearest_named
def assert_varlen_close(
    output: Array, q: Array, k: Array, v: Array, cu_seqlens_q: WholeNumbers, cu_seqlens_k: WholeNumbers, *,
    is_causal: bool = False, causal_offset: WholeNumbers | None = None, window: Window | None = None,
    scale: Number | None = None, softcap: Number | None = None, sinks: Array | None = None,
    bias: Array | None = None, lse: Array | None = None,
    profile: Profile | str | None = None, rows: int | None = None, seed: int = 0,
) -> Closeness:  # fmt: skip
    """Assert that ``output`` is attention of packed sequences, each within its own bound.

    Parameters
    ----------
    output
        (Tq, Hq, Dv).
    q, k, v
        (Tq, Hq, D), (Tk, Hkv, D) and (Tk, Hkv, Dv), of one dtype.
    cu_seqlens_q, cu_seqlens_k
        (N + 1,): sequence n has the rows from element n up to element n + 1.  Rows behind the last are not checked.
    is_causal, causal_offset, window, scale, softcap, sinks
        As SPEC.md defines them for varlen: masks are aligned at the bottom right of each sequence, unless
        ``causal_offset``, one number or (N,), says otherwise.
    bias
        (N or 1, Hq or 1, longest queries, longest keys) or larger, indexed by row i and key j of each sequence.
    lse
        A further result, (Hq, Tq), in float32 or wider.
    profile
        As in ``assert_close``.
    rows
        Number of rows of the pack to check, each with all heads; by default all up to 2²⁰ scores, beyond that as many
        as make up 2²⁰, at least 8.  First and last rows, rows at sequence boundaries and odd-looking rows are included.
    seed
        Seed that chooses the other rows.

    Returns
    -------
    Closeness
        The share of the bound that is used, what was checked, and seconds.

    Raises
    ------
    NotClose
        An AssertionError.
    TypeError
        For an unknown option, for something that is no array, or for a dtype without bounds.
    ValueError
        Where the inputs do not fit together, or the spec leaves the result open (VARLEN-12).
    """
    __tracebackhide__ = True
    given_arrays = {"q": q, "k": k, "v": v, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    options = {
        "is_causal": is_causal or None, "causal_offset": causal_offset, "window": window, "scale": scale,
        "softcap": softcap, "sinks": sinks, "bias": bias,
    }  # fmt: skip
    return _raise_unless_close(packed(given_arrays, options, {"output": output, "lse": lse}, profile, rows, seed))


@_nearest_named
def assert_paged_close(
    output: Array, q: Array, k_cache: Array, v_cache: Array, cu_seqlens_q: WholeNumbers,
    block_table: Array | Sequence[Sequence[int]], kv_lengths: WholeNumbers, *,
    k_new: Array | None = None, v_new: Array | None = None,
    k_scale: Array | None = None, v_scale: Array | None = None,
    is_causal: bool = False, causal_offset: WholeNumbers | None = None,
    window: Window | None = None, scale: Number | None = None, softcap: Number | None = None,
    sinks: Array | None = None, lse: Array | None = None,
    profile: Profile | str | None = None, rows: int | None = None, seed: int = 0,
) -> Closeness:  # fmt: skip
    """Assert that ``output`` is attention of packed queries over keys and values in pages of a cache.

    Parameters
    ----------
    output, q
        (Tq, Hq, Dv) and (Tq, Hq, D).
    k_cache, v_cache
        (pages, page size, Hkv, D) and (pages, page size, Hkv, Dv), in the dtype of q, or in eight bits with scales.
    cu_seqlens_q, block_table, kv_lengths
        (N + 1,), (N, most pages of a sequence) and (N,); lengths include the keys of the queries' own tokens.
    k_new, v_new
        (Tq, Hkv, D) and (Tq, Hkv, Dv): the keys and values of the queries' tokens, instead of those in the cache.
    k_scale, v_scale
        Factors of the caches' numbers, float32 with four axes, each of length 1 or as long as the cache's (PAGED-14).
    is_causal, causal_offset, window, scale, softcap, sinks, lse, profile, rows, seed
        As in ``assert_varlen_close``.

    Returns
    -------
    Closeness
        The share of the bound that is used, what was checked, and seconds.

    Raises
    ------
    NotClose
        An AssertionError.
    TypeError
        For an unknown option, for something that is no array, or for a dtype without bounds.
    ValueError
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
    return _raise_unless_close(packed(given_arrays, options, {"output": output, "lse": lse}, profile, rows, seed))


@_nearest_named
def assert_merge_close(
    output: Array, outputs: Array | Sequence[Array], lses: Array | Sequence[Array], *,
    lse: Array | None = None, layout: Layout | str = Layout.BHSD, profile: Profile | str | None = None,
) -> Closeness:  # fmt: skip
    """Assert that ``output`` is attention over all keys, merged from partial results over disjoint sets of keys.

    Parameters
    ----------
    output
        (B, H, S, Dv); without batch (H, S, Dv), without heads too (S, Dv); the other arguments then have the same axes.
    outputs, lses
        Output and lse of each part: a list of arrays like ``output`` and one of (B, H, S), or arrays with one axis
        more.  Log-sum-exps are natural, in float32 or wider, −inf where a part has no key.
    lse
        A further result, (B, H, S).
    layout
        "bhsd", or "bshd" for outputs (B, S, H, Dv).
    profile
        As in ``assert_close``.

    Returns
    -------
    Closeness
        The share of the bound that is used, what was checked, and seconds.

    Raises
    ------
    NotClose
        An AssertionError.
    TypeError
        For an unknown option, for something that is no array, or for a dtype without bounds.
    ValueError
        Where the inputs do not fit together, or the spec leaves the result open (MERGE-16).
    """
    __tracebackhide__ = True
    return _raise_unless_close_in(functools.partial(merge, output, outputs, lses, lse, profile=profile), layout)


@_nearest_named
def assert_latent_close(
    output: Array, q: Array, q_rope: Array, latents: Array, k_rope: Array, w_uk: Array, w_uv: Array, *,
    is_causal: bool = False, causal_offset: WholeNumbers | None = None, kv_lengths: WholeNumbers | None = None,
    scale: Number | None = None, lse: Array | None = None, layout: Layout | str = Layout.BHSD,
    profile: Profile | str | None = None, rows: int | None = None, seed: int = 0,
) -> Closeness:  # fmt: skip
    """Assert that ``output`` is latent attention (multi-head latent attention), in whichever form it was computed.

    Parameters
    ----------
    output
        (B, H, Sq, Dv); without batch (H, Sq, Dv); the other arguments then have none either.
    q, q_rope
        (B, H, Sq, D) and (B, H, Sq, Dr): the part of a query that meets projected keys, and the rotary one.
    latents, k_rope
        (B, Sk, R) and (B, Sk, Dr): one latent per token, and one rotary key, which is already rotated.
    w_uk, w_uv
        (H, R, D) and (H, R, Dv): the projections of a latent to a head's key and value.
    is_causal, causal_offset, kv_lengths
        As in ``assert_close``.
    scale
        Factor of the scores; by default 1/√(D + Dr).
    lse
        A further result, (B, H, Sq).
    layout
        "bhsd", or "bshd" for q, q_rope and output (B, S, H, D).
    profile
        As in ``assert_close``.
    rows
        Number of query rows of every head to check; by default all up to 2²⁰ scores, or 2²⁰ · 64 / (R + Dr) of wider
        caches, beyond that as many as make that up, at least 8.  First, last and odd-looking rows are included.
    seed
        Seed that chooses the other rows.

    Returns
    -------
    Closeness
        The share of the bound that is used, what was checked, and seconds.

    Raises
    ------
    NotClose
        An AssertionError.
    TypeError
        For an unknown option, for something that is no array, or for a dtype without bounds.
    ValueError
        Where the inputs do not fit together, or the spec leaves the result open (MLA-8).
    """
    __tracebackhide__ = True
    given_arrays = {
        "q": q, "q_rope": q_rope, "latents": latents, "k_rope": k_rope, "w_uk": w_uk, "w_uv": w_uv,
    }  # fmt: skip
    options = {"is_causal": is_causal, "causal_offset": causal_offset, "kv_lengths": kv_lengths, "scale": scale}
    results = {"output": output, "lse": lse}
    ask = functools.partial(latent, given_arrays, options, results, profile=profile, wanted=rows, seed=seed)
    return _raise_unless_close_in(ask, layout)


# From a question to a verdict.


def _one_thread(decide: Callable[P, T]) -> Callable[P, T]:
    """The function with one thread in NumPy's products: they are small, and more threads spin between them.

    On two busy cores more threads took 9 s of processor time where one thread takes 2 s.
    """

    @functools.wraps(decide)
    def alone(*arguments: P.args, **keywords: P.kwargs) -> T:
        __tracebackhide__ = True
        with blas().limit(limits=1):
            return decide(*arguments, **keywords)

    return alone


@_one_thread
def _share(question: Question) -> float:
    """The largest share; inf for a wrong form."""
    shares = [_judge_part(part, question)[0].share for part in question.parts]
    return max((float("inf") if s is None else s for s in shares), default=0.0)


#: The layout that a caller may have meant instead of each, and the axes of its arrays.
OTHER_LAYOUT = {Layout.BHSD: (Layout.BSHD, "(B, S, H, D)"), Layout.BSHD: (Layout.BHSD, "(B, H, S, D)")}


def _raise_unless_close_in(ask: Callable[..., Question], layout: Layout | str) -> Closeness:
    """The closeness of arrays in a layout.  Raises NotClose and ValueError with a hint where the other layout is meant.

    Only results that are close when all arrays are read in the other layout say that it is meant.
    """
    __tracebackhide__ = True
    other, axes = OTHER_LAYOUT[layout_of(layout)]

    def hint() -> str:
        try:
            close = _share(ask(layout=other)) <= 1
        except (TypeError, ValueError):  # the arrays do not fit together in the other layout
            return ""
        return f'the arrays look like {axes}: pass layout="{other.value.lower()}"' if close else ""

    try:
        question = ask(layout=layout)
    except ValueError as error:
        meant = hint()
        if not meant:
            raise
        raise ValueError(f"{error}; {meant}") from None
    return _raise_unless_close(question, hint)


@_one_thread
def _raise_unless_close(question: Question, hint: Callable[[], str] = str) -> Closeness:
    """The closeness that was found.  Raises NotClose, whose text has the hint if it is not empty."""
    __tracebackhide__ = True
    start = time.perf_counter()
    shares: dict[str, float] = {}
    for part in question.parts:
        result, finding, reply, compared = _judge_part(part, question)
        if finding is not None:
            result, finding, reply, _ = _judge_part(part, question, every_profile=True)  # says which profiles it keeps
            assert finding is not None  # which other profiles are kept decides nothing
            raise NotClose(part.case, reply, result, finding, part.note, hint)
        shares |= {one.name: one.share for one in compared}
    share = max(shares.values(), default=0.0)
    seconds = time.perf_counter() - start
    return Closeness(share, shares, question.profile.value, question.rows, question.heads, seconds)


def _judge_part(
    part: Part, question: Question, *, every_profile: bool = False
) -> tuple[Result, Finding | None, Reply, Sequence[Comparison]]:
    """The judge's finding about a part, the results that it looked at, and their comparisons with the bounds."""
    case, dtype = part.case, question.dtype
    blank = Result(
        "given", "cpu", dtype, case.name, case.clauses, Outcome.PASSED, profile=question.profile.value
    )  # fmt: skip
    shapes = getattr(case, "whole", None)
    if shapes:
        # The form of the whole results, before a part of them is taken.
        form = forms({n: shapes[n] for n in case.results()})
        finding = judge.wrong_form(part.reply, case, form, dtype)
        if finding is not None:
            return blank, finding, part.reply, ()
    looked = Reply("returned", {n: part_in_question(case, n, a) for n, a in part.reply.results.items()})
    looked = without_open(case, looked, dtype)
    result, finding, compared = judge.compare_results(looked, case, case.expected(dtype), blank, every_profile)
    return result, finding, looked, compared


__all__ = [
    "Closeness",
    "InvalidInput",
    "NotClose",
    "assert_close",
    "assert_latent_close",
    "assert_layer_close",
    "assert_merge_close",
    "assert_paged_close",
    "assert_varlen_close",
    "error_share",
    "layer_error_share",
]
