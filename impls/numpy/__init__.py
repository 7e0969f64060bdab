"""Implementations in NumPy."""

from __future__ import annotations

from attention_conformance.impls.contract import Implementation, Profile

#: Half precision is computed in float32 and rounded once.
_PROFILES = dict.fromkeys(("float64", "float32", "float16", "bfloat16"), Profile.WIDE)

IMPLEMENTATIONS: tuple[Implementation, ...] = (
    Implementation(
        name="numpy-eager",
        target="attention_conformance.impls.numpy.eager:attention",
        devices=("cpu",),
        profiles=_PROFILES,
        requires=("numpy", "ml_dtypes"),
        summary="matmul, softmax, matmul over the whole score matrix, following every clause",
    ),
    Implementation(
        name="numpy-tiled",
        target="attention_conformance.impls.numpy.tiled:attention",
        devices=("cpu",),
        profiles=_PROFILES,
        requires=("numpy", "ml_dtypes", "threadpoolctl"),
        summary="softmax over tiles, no array as large as the score matrix, on every thread, following every clause",
    ),
    Implementation(
        name="numpy-gradients",
        target="attention_conformance.impls.numpy.gradients:gradients",
        operator="sdpa_grad",
        devices=("cpu",),
        profiles=_PROFILES,
        requires=("numpy", "ml_dtypes"),
        summary="the closed formula of the gradients written out",
    ),
    Implementation(
        name="numpy-layer-gradients",
        target="attention_conformance.impls.numpy.gradients:layer_gradients",
        operator="mha_grad",
        devices=("cpu",),
        profiles=_PROFILES,
        requires=("numpy", "ml_dtypes"),
        summary="the chain rule through numpy-layer written out",
    ),
    *(
        Implementation(
            name=f"numpy-{name}",
            target=f"attention_conformance.impls.numpy.layer:{operator}",
            operator=operator,
            devices=("cpu",),
            profiles=_PROFILES,
            requires=("numpy", "ml_dtypes"),
            summary=summary,
        )
        for name, operator, summary in (
            ("layer", "mha", "projections, heads, attention and output projection written out"),
            ("sublayer", "sublayer", "numpy-layer with residual and LayerNorm"),
        )
    ),
)
