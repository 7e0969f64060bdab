"""Implementations in JAX."""

from __future__ import annotations

from attention_conformance.impls.contract import Framework, Implementation, Layout, Profile

#: Half precision is computed in float32 and rounded once.
_WIDE = dict.fromkeys(("float64", "float32", "float16", "bfloat16"), Profile.WIDE)

#: jax.nn computes scores in float32, rounds the weights to the dtype of k, and multiplies them with v.
_NN = {"float16": Profile.FUSED, "bfloat16": Profile.FUSED}

IMPLEMENTATIONS: tuple[Implementation, ...] = (
    Implementation(
        name="jax-jit",
        target="attention_conformance.impls.jax.eager:attention",
        framework=Framework.JAX,
        prepare="attention_conformance.impls.jax.prepare:jitted",
        profiles=_WIDE,
        requires=("jax",),
        summary="matmul, softmax, matmul over the whole score matrix, compiled by XLA, following every clause",
    ),
    Implementation(
        name="jax-tiled",
        target="attention_conformance.impls.jax.tiled:attention",
        framework=Framework.JAX,
        prepare="attention_conformance.impls.jax.prepare:jitted",
        # XLA compiles a loop for longer than jax-jit's line of operations: four dtypes take four minutes.
        dtypes=("float32", "bfloat16"),
        profiles=_WIDE,
        requires=("jax",),
        summary="online softmax over tiles, no array as large as the score matrix, compiled by XLA",
    ),
    Implementation(
        name="jax-nn",
        target="attention_conformance.impls.jax.nn:attention",
        framework=Framework.JAX,
        prepare="attention_conformance.impls.jax.nn:prepare",
        layout=Layout.BSHD,
        profiles=_NN,
        requires=("jax",),
        summary="jax.nn.dot_product_attention as XLA compiles it",
    ),
    Implementation(
        name="jax-nn-cudnn",
        target="attention_conformance.impls.jax.nn:cudnn_attention",
        framework=Framework.JAX,
        # cuDNN takes scale and window as attributes of the kernel, not as arguments.
        prepare="attention_conformance.impls.jax.prepare:jitted_static",
        layout=Layout.BSHD,
        dtypes=("float16", "bfloat16"),
        devices=("cuda",),
        profiles=dict.fromkeys(("float16", "bfloat16"), Profile.FUSED),
        requires=("jax",),
        summary="jax.nn.dot_product_attention in cuDNN's flash kernel",
    ),
    *(
        Implementation(
            name=f"{name}-gradients",
            target=f"attention_conformance.impls.jax.{target}",
            operator=f"{operator}_grad",
            function_of=operator,
            framework=Framework.JAX,
            prepare="attention_conformance.impls.jax.gradients:jitted",
            profiles=_WIDE,
            requires=("jax",),
            summary=f"{name} and its backward pass, by jax.vjp, compiled by XLA",
        )
        for name, target, operator in (("jax-jit", "eager:attention", "sdpa"), ("jax-layer", "layer:mha", "mha"))
    ),
    *(
        Implementation(
            name=f"jax-{name}",
            target=f"attention_conformance.impls.jax.layer:{operator}",
            operator=operator,
            framework=Framework.JAX,
            prepare="attention_conformance.impls.jax.prepare:jitted",
            profiles=_WIDE,
            requires=("jax",),
            summary=summary,
        )
        for name, operator, summary in (
            ("layer", "mha", "projections, heads, attention and output projection written out, compiled by XLA"),
            ("sublayer", "sublayer", "jax-layer with residual and LayerNorm"),
        )
    ),
)
