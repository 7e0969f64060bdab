"""The operators: the arguments, keywords and results of each one's function.

conformance/SPEC.md says what they mean.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass


@dataclass(frozen=True)
class Operator:
    """The signature of a function that the spec defines."""

    name: str
    #: Arrays that every call gives.
    arguments: tuple[str, ...]
    #: All keywords.
    keywords: tuple[str, ...]
    #: Keywords whose value may be an array.  They reach the function as arrays of its framework; every other keyword
    #: is a plain Python value, known when the call is prepared.
    arrays: tuple[str, ...]
    #: Results in the order in which they are returned, with the keyword that requests each ("" for always).
    results: tuple[tuple[str, str], ...]
    #: Keywords that every call gives, so that accepting them is not a feature.
    always: tuple[str, ...] = ()

    def returned(self, given: Container[str]) -> tuple[str, ...]:
        """Names of the results of a call with these keywords.

        Parameters
        ----------
        given
            The keywords of a call.

        Returns
        -------
        tuple[str, ...]
            Names in the order in which they are returned.
        """
        return tuple(name for name, keyword in self.results if not keyword or keyword in given)

    @property
    def differentiated(self) -> tuple[str, ...]:
        """Names of the arrays whose gradients an operator of gradients returns, in the order of its results."""
        return tuple(name.removeprefix("grad_") for name, _ in self.results)


#: Keys and values of earlier tokens; k and v are then those of the new ones, and Sk counts both.
_PAST = (
    "past_key",  # (B, Hkv, P, D)
    "past_value",  # (B, Hkv, P, Dv)
)

_ROTARY = ("rotary_cos", "rotary_sin", "rotary_interleaved")

SDPA = Operator(
    "sdpa",
    arguments=("q", "k", "v"),
    keywords=(
        "mask",  # bool, broadcastable to (B, Hq, Sq, Sk); True = may attend
        "bias",  # dtype of q, broadcastable to (B, Hq, Sq, Sk); added to the scaled score
        "is_causal",  # bool
        "causal_offset",  # int, or an int64 array (B,); with options by position; None = 0, or P with a past
        "window",  # (left, right), each an int >= 0 or None for an open side
        "kv_lengths",  # int64 array (B,)
        "scale",  # float; None = 1/sqrt(D)
        "softcap",  # float > 0
        "sinks",  # dtype of q, (Hq,); one logit per query head that enters the softmax and no value
        "alibi_slopes",  # dtype of q, (Hq,); a head's scores fall by this much with each key of distance
        "head_scale",  # dtype of q, (Hq,); a factor on the scale of each head
        "rotary_cos",  # dtype of q, (P, W / 2), W <= D; cosines of the angles of q and k at each place
        "rotary_sin",  # the same for their sines
        "rotary_interleaved",  # bool; columns 2d and 2d + 1 are a pair, instead of d and d + W / 2
        "block_mask",  # bool, (..., Sq / bq, Sk / bk), both rounded up; True = the keys of the block may be attended to
        "block_size",  # (bq, bk), each an int >= 1; only with block_mask
        "tree_parents",  # int64 array (Sq,) or (B, Sq); the query that each one follows, -1 for none
        *_PAST,
        "return_weights",  # bool; weights (B, Hq, Sq, Sk)
        "return_lse",  # bool; natural log-sum-exp (B, Hq, Sq)
    ),
    arrays=(
        "mask",
        "bias",
        "causal_offset",
        "kv_lengths",
        "sinks",
        "alibi_slopes",
        "head_scale",
        *_ROTARY[:2],
        "block_mask",
        "tree_parents",
        *_PAST,
    ),
    results=(
        ("output", ""),
        ("weights", "return_weights"),
        ("lse", "return_lse"),
        ("present_key", "past_key"),  # (B, Hkv, Sk, D)
        ("present_value", "past_key"),  # (B, Hkv, Sk, Dv)
    ),
)

#: Keywords of both layers.  Projections are y = x @ w + b, so a weight is (inputs, outputs).
_PROJECTIONS = (
    "x_kv",  # (B, Sk, Ekv): input of keys and values; x_q without it
    "w_o",  # (H · Dv, Eo); without it the combined heads are the output
    "b_q",  # (H · D,)
    "b_k",  # (H · D,)
    "b_v",  # (H · Dv,)
    "b_o",  # (Eo,); only with w_o
)
_ATTENTION = (
    "mask",  # bool, broadcastable to (B, H, Sq, Sk)
    "bias",  # dtype of x_q, broadcastable to (B, H, Sq, Sk)
    "is_causal",  # bool
    "kv_lengths",  # int64 array (B,)
    "scale",  # float; None = 1/sqrt(D)
    "sequence_first",  # bool; inputs and output are (S, B, E)
)

MHA = Operator(
    "mha",
    arguments=("x_q", "w_q", "w_k", "w_v"),  # (B, Sq, E) or (Sq, E); (E, H · D), (Ekv, H · D), (Ekv, H · Dv)
    keywords=(
        "heads",  # int; divides the columns of w_q, w_k and w_v
        *_PROJECTIONS,
        *_ATTENTION,
        "return_weights",  # bool; weights (B, H, Sq, Sk)
        "average_weights",  # bool, with return_weights; their mean over the heads, (B, Sq, Sk)
    ),
    arrays=(*_PROJECTIONS, "mask", "bias", "kv_lengths"),
    results=(("output", ""), ("weights", "return_weights")),
    always=("heads",),
)

_NORM = ("gamma", "beta")  # (E,) each

SUBLAYER = Operator(
    "sublayer",
    arguments=MHA.arguments,
    keywords=(
        "heads",
        *_NORM,
        "epsilon",  # float > 0
        "pre_norm",  # bool; x + mha(LayerNorm(x)) instead of LayerNorm(x + mha(x))
        *_PROJECTIONS,
        *_ATTENTION,
    ),
    arrays=(*_NORM, *_PROJECTIONS, "mask", "bias", "kv_lengths"),
    results=(("output", ""),),
    always=("heads", *_NORM, "epsilon"),
)

#: Keywords of sdpa that its gradients do not have.
_FORWARD_ONLY = (
    "sinks",
    "alibi_slopes",
    "head_scale",
    *_ROTARY,
    "block_mask",
    "block_size",
    "tree_parents",
    *_PAST,
    "return_weights",
    "return_lse",
)

SDPA_GRAD = Operator(
    "sdpa_grad",
    arguments=("q", "k", "v", "grad_output"),
    keywords=tuple(name for name in SDPA.keywords if name not in _FORWARD_ONLY),
    arrays=tuple(name for name in SDPA.arrays if name not in _FORWARD_ONLY),
    results=(("grad_q", ""), ("grad_k", ""), ("grad_v", ""), ("grad_bias", "bias")),
)

MHA_GRAD = Operator(
    "mha_grad",
    arguments=(*MHA.arguments, "grad_output"),  # of the output of mha, in its shape
    keywords=tuple(name for name in MHA.keywords if name not in ("return_weights", "average_weights")),
    arrays=MHA.arrays,
    results=(
        *((f"grad_{name}", "") for name in MHA.arguments),
        *((f"grad_{name}", name) for name in (*_PROJECTIONS, "bias")),
    ),
    always=("heads",),
)

#: Options of attention over packed sequences; offsets and lengths are counted from the start of each sequence.
_PACKED = (
    "is_causal",  # bool
    "causal_offset",  # int, or an int64 array (N,); None = the keys of a sequence less its queries (bottom right)
    "window",  # (left, right), each an int >= 0 or None for an open side
    "scale",  # float; None = 1/sqrt(D)
    "softcap",  # float > 0
    "sinks",  # dtype of q, (Hq,)
    "max_seqlen_q",  # int, at least the longest sequence's queries; given to every function that takes it
    "max_seqlen_k",  # the same for keys
    "num_splits",  # int >= 1; number of parts that keys are split into, which changes only the last bits
    "return_lse",  # bool; natural log-sum-exp (Hq, Tq)
)

VARLEN = Operator(
    "varlen",
    # (Tq, Hq, D), (Tk, Hkv, D), (Tk, Hkv, Dv), and int32 (N + 1,) each
    arguments=("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k"),
    keywords=(
        *_PACKED,
        "bias",  # dtype of q, (N or 1, Hq or 1, max_seqlen_q, max_seqlen_k); rows and keys counted in a sequence
    ),
    arrays=("causal_offset", "sinks", "bias"),
    results=(("output", ""), ("lse", "return_lse")),  # (Tq, Hq, Dv)
    always=("max_seqlen_q", "max_seqlen_k"),
)

VARLEN_GRAD = Operator(
    "varlen_grad",
    arguments=("q", "k", "v", "grad_output", "cu_seqlens_q", "cu_seqlens_k"),  # grad_output (Tq, Hq, Dv)
    keywords=tuple(name for name in _PACKED if name not in ("sinks", "num_splits", "return_lse")),
    arrays=("causal_offset",),
    results=(("grad_q", ""), ("grad_k", ""), ("grad_v", "")),
    always=VARLEN.always,
)

#: Partial results over disjoint sets of keys, joined into the result over all keys.
MERGE = Operator(
    "merge",
    arguments=(
        "outputs",  # (P, B, H, S, Dv); P parts
        "lses",  # float32, or float64 for outputs in float64; (P, B, H, S), natural, -inf for a part without a key
    ),
    keywords=(),
    arrays=(),
    results=(("output", ""), ("lse", "")),  # (B, H, S, Dv) and (B, H, S)
)

MERGE_GRAD = Operator(
    "merge_grad",
    arguments=("outputs", "lses", "grad_output"),  # grad_output (B, H, S, Dv), of the dtype of outputs
    keywords=("grad_lse",),  # of the dtype of lses, (B, H, S); without it no loss depends on lse
    arrays=("grad_lse",),
    results=(("grad_outputs", ""), ("grad_lses", "")),
)

PAGED = Operator(
    "paged",
    arguments=(
        "q",  # (Tq, Hq, D)
        "k_cache",  # (pages, page size, Hkv, D)
        "v_cache",  # (pages, page size, Hkv, Dv)
        "cu_seqlens_q",  # int32 (N + 1,)
        "block_table",  # int32 (N, most pages of a sequence)
        "kv_lengths",  # int32 (N,); the keys of each sequence, new ones among them
    ),
    keywords=(
        *_PACKED,
        "k_new",  # (Tq, Hkv, D); the keys of the queries' tokens, in place of what the cache has at their positions
        "v_new",  # (Tq, Hkv, Dv)
        "k_scale",  # float32, broadcastable to k_cache, which then holds int8 or 8-bit floating-point numbers
        "v_scale",  # the same for v_cache
    ),
    arrays=("causal_offset", "sinks", "k_new", "v_new", "k_scale", "v_scale"),
    results=VARLEN.results,
    always=VARLEN.always,
)

#: Attention over latents, from which each head's keys and values are projections, and one rotary key for all heads.
LATENT = Operator(
    "latent",
    arguments=(
        "q",  # (B, H, Sq, D)
        "q_rope",  # (B, H, Sq, Dr)
        "latents",  # (B, Sk, R)
        "k_rope",  # (B, Sk, Dr)
        "w_uk",  # (H, R, D); a head's keys are latents @ w_uk[h], next to k_rope
        "w_uv",  # (H, R, Dv); its values
    ),
    keywords=(
        "is_causal",  # bool
        "causal_offset",  # int, or an int64 array (B,); only with is_causal; None = 0
        "kv_lengths",  # int64 array (B,)
        "scale",  # float; None = 1/sqrt(D + Dr)
        "return_lse",  # bool; natural log-sum-exp (B, H, Sq)
    ),
    arrays=("causal_offset", "kv_lengths"),
    results=(("output", ""), ("lse", "return_lse")),  # (B, H, Sq, Dv)
)

#: The operator of gradients of each operator that has one.
GRADIENTS = {
    SDPA.name: SDPA_GRAD.name,
    MHA.name: MHA_GRAD.name,
    VARLEN.name: VARLEN_GRAD.name,
    MERGE.name: MERGE_GRAD.name,
}

#: Results that are in float32 or wider, whatever the dtype of the others is.
WIDE_RESULTS = ("lse", "grad_lses")

OPERATORS = {
    operator.name: operator
    for operator in (SDPA, MHA, SUBLAYER, SDPA_GRAD, MHA_GRAD, VARLEN, VARLEN_GRAD, PAGED, MERGE, MERGE_GRAD, LATENT)
}
