"""Implementations in JAX."""

from __future__ import annotations

from typing import Any

from attention_conformance.impls.contract import DTYPES, Framework, Implementation, Layout, Profile
from attention_conformance.impls.operators import SDPA

_HALF = ("float16", "bfloat16")

#: Half precision is computed in float32 and rounded once.
_WIDE = dict.fromkeys(DTYPES, Profile.WIDE)

#: jax.nn computes scores in float32, rounds the weights to the dtype of k, and multiplies them with v.
#: Without a ``precision`` JAX multiplies float32 matrices on NVIDIA GPUs in TF32
#: (https://docs.jax.dev/en/latest/_autosummary/jax.default_matmul_precision.html), and jax.nn takes none.
_NN = dict.fromkeys(_HALF, Profile.FUSED) | {"cuda-float32": Profile.TF32}


#: Processor seconds that XLA compiles a case for, as a cold run of all cases took; 0.1 where there is no number.
_SECONDS = {
    "jax-jit": 0.2,
    "jax-tiled": 0.23,
    "jax-jit-gradients": 0.4,
    "jax-layer-gradients": 0.8,
    "jax-merge-gradients": 0.2,
    "jax-nn-gradients": 0.4,
    "jax-layer": 0.3,
    "jax-varlen-nn": 0.5,
    "jax-sublayer": 0.5,
    "jax-latent": 0.4,
}


def _entry(
    name: str,
    target: str,
    summary: str,
    prepare: str = "prepare:jitted",
    *,
    operator: str = SDPA.name,
    **fields: Any,
) -> Implementation:
    """A record with the common fields of JAX's; ``target`` and ``prepare`` are relative to this folder."""
    return Implementation(
        name=name,
        target=f"attention_conformance.impls.jax.{target}",
        framework=Framework.JAX,
        prepare=f"attention_conformance.impls.jax.{prepare}",
        operator=operator,
        requires=("jax",),
        # XLA compiles for ten minutes of processor time, and two processes take half the time.
        worker="jax" if operator == SDPA.name else "jax-beside",
        summary=summary,
        case_seconds=_SECONDS.get(name, 0.1),
        **{"profiles": _WIDE, **fields},
    )


IMPLEMENTATIONS: tuple[Implementation, ...] = (
    _entry(
        "jax-jit",
        "eager:attention",
        "matmul, softmax, matmul over the whole score matrix, compiled by XLA, following every clause",
    ),
    _entry(
        "jax-tiled",
        "tiled:attention",
        "online softmax over tiles, no array as large as the score matrix, compiled by XLA",
        # XLA compiles a loop for longer than jax-jit's line of operations: four dtypes take four minutes.
        dtypes=("float32", "bfloat16"),
    ),
    _entry(
        "jax-nn",
        "nn:attention",
        "jax.nn.dot_product_attention as XLA compiles it",
        layout=Layout.BSHD,
        profiles=_NN,
    ),
    _entry(
        "jax-nn-cudnn",
        "nn:cudnn_attention",
        "jax.nn.dot_product_attention in cuDNN's flash kernel",
        # cuDNN takes scale and window as attributes of the kernel, not as arguments.
        "prepare:jitted_static",
        layout=Layout.BSHD,
        dtypes=_HALF,
        devices=("cuda",),
        profiles=_NN,
    ),
    *(
        _entry(
            f"{name}-gradients",
            target,
            f"{name} and its backward pass, by jax.vjp, compiled by XLA",
            "gradients:jitted",
            operator=f"{operator}_grad",
            function_of=operator,
        )
        for name, target, operator in (
            ("jax-jit", "eager:attention", "sdpa"),
            ("jax-layer", "layer:mha", "mha"),
            ("jax-merge", "merge:merge", "merge"),
        )
    ),
    _entry(
        "jax-nn-gradients",
        "nn:attention",
        "jax-nn and its backward pass, by jax.vjp, compiled by XLA",
        "gradients:jitted",
        operator="sdpa_grad",
        function_of="sdpa",
        layout=Layout.BSHD,
        dtypes=("float32", "bfloat16"),
        profiles=_NN,
    ),
    _entry(
        "jax-layer",
        "layer:mha",
        "projections, heads, attention and output projection written out, compiled by XLA",
        operator="mha",
    ),
    _entry(
        "jax-varlen-nn",
        "varlen:varlen",
        "packed sequences in jax.nn.dot_product_attention with a mask by segment, compiled by XLA",
        operator="varlen",
        dtypes=("float32", "bfloat16"),
        profiles=_NN,
    ),
    _entry("jax-sublayer", "layer:sublayer", "jax-layer with residual and LayerNorm", operator="sublayer"),
    _entry(
        "jax-latent",
        "latent:latent",
        "latents absorbed into queries and output, by jax-jit, compiled by XLA",
        operator="latent",
    ),
    _entry(
        "jax-merge", "merge:merge", "logsumexp and a weighted sum over the parts, compiled by XLA", operator="merge"
    ),
)
