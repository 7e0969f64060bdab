"""Implementations in NumPy."""

from __future__ import annotations

from attention_conformance.impls.contract import DTYPES, Implementation, Profile


def _entry(name: str, target: str, summary: str, operator: str = "sdpa", *packages: str) -> Implementation:
    """A record with the common fields of NumPy's: half precision is computed in float32 and rounded once."""
    return Implementation(
        name=name,
        target=f"attention_conformance.impls.numpy.{target}",
        operator=operator,
        devices=("cpu",),
        profiles=dict.fromkeys(DTYPES, Profile.WIDE),
        requires=("numpy", "ml_dtypes", *packages),
        summary=summary,
    )


IMPLEMENTATIONS: tuple[Implementation, ...] = (
    _entry(
        "numpy-eager",
        "eager:attention",
        "matmul, softmax, matmul over the whole score matrix, following every clause",
    ),
    _entry(
        "numpy-tiled",
        "tiled:attention",
        "softmax over tiles, no array as large as the score matrix, on every thread, following every clause",
        "sdpa",
        "threadpoolctl",
    ),
    _entry("numpy-blocks", "blocks:block_sparse", "the keys of each block of rows by a block mask, by numpy-eager"),
    _entry("numpy-gradients", "gradients:gradients", "the closed formula of the gradients written out", "sdpa_grad"),
    _entry(
        "numpy-layer-gradients",
        "gradients:layer_gradients",
        "the chain rule through numpy-layer written out",
        "mha_grad",
    ),
    _entry("numpy-layer", "layer:mha", "projections, heads, attention and output projection written out", "mha"),
    _entry("numpy-varlen", "varlen:varlen", "packed sequences, one after the other by numpy-eager", "varlen"),
    _entry(
        "numpy-varlen-gradients",
        "varlen_gradients:varlen_gradients",
        "gradients of packed sequences, one after the other by numpy-gradients",
        "varlen_grad",
    ),
    _entry("numpy-paged", "paged:paged", "a paged cache, gathered by its table for numpy-varlen", "paged"),
    _entry("numpy-latent", "latent:latent", "latents absorbed into queries and output, by numpy-eager", "latent"),
    _entry("numpy-sublayer", "layer:sublayer", "numpy-layer with residual and LayerNorm", "sublayer"),
    _entry(
        "numpy-merge", "merge:merge", "partial results joined by their log-sum-exps, following every clause", "merge"
    ),
    _entry(
        "numpy-merge-gradients",
        "merge_gradients:merge_gradients",
        "the closed formula of the gradients of a merge written out",
        "merge_grad",
    ),
)
