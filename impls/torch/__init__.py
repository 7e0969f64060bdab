"""Implementations in PyTorch."""

from __future__ import annotations

from attention_conformance.impls.contract import DTYPES, Framework, Implementation, Profile

#: The composition computes half precision in float32 throughout (unless torch.backends.cuda is told to reduce in it).
_WIDE = dict.fromkeys(("float16", "bfloat16"), Profile.WIDE)
#: Flash kernels keep scores in float32 and round the weights before they meet v; so does uncompiled flex attention.
_FUSED = dict.fromkeys(("float16", "bfloat16"), Profile.FUSED)
#: Every tensor between two operations is in the dtype of the inputs.
_STORAGE = dict.fromkeys(("float16", "bfloat16"), Profile.STORAGE)


def _entry(
    name: str,
    target: str,
    summary: str,
    profiles: dict[str, Profile],
    devices: tuple[str, ...] = ("cpu", "cuda"),
    operator: str = "sdpa",
) -> Implementation:
    """A record with what all of PyTorch's have in common; ``target`` is relative to this folder."""
    return Implementation(
        name=name,
        target=f"attention_conformance.impls.torch.{target}",
        operator=operator,
        framework=Framework.TORCH,
        requires=("torch", "ml_dtypes"),
        devices=devices,
        profiles=profiles,
        summary=summary,
    )


IMPLEMENTATIONS: tuple[Implementation, ...] = (
    _entry("torch-eager", "eager:attention", "matmul, softmax, matmul in the dtype of the inputs", _STORAGE),
    _entry("torch-sdpa", "sdpa:attention", "scaled_dot_product_attention, kernel as dispatched", _FUSED),
    _entry("torch-sdpa-math", "sdpa:math", "scaled_dot_product_attention, composition forced", _WIDE),
    _entry("torch-sdpa-flash", "sdpa:flash", "scaled_dot_product_attention, flash kernel forced", _FUSED),
    _entry(
        "torch-sdpa-efficient",
        "sdpa:efficient",
        "scaled_dot_product_attention, memory-efficient kernel forced",
        _FUSED,
        ("cuda",),
    ),
    _entry("torch-sdpa-cudnn", "sdpa:cudnn", "scaled_dot_product_attention, cuDNN kernel forced", _FUSED, ("cuda",)),
    _entry("torch-flex", "flex:attention", "flex_attention, not compiled", _FUSED),
    Implementation(
        name="torch-compile",
        target="attention_conformance.impls.torch.compiled:attention",
        framework=Framework.TORCH,
        prepare="attention_conformance.impls.torch.compiled:compiled",
        requires=("torch", "ml_dtypes"),
        dtypes=("float32",),
        summary="torch-eager under torch.compile; three keywords and float32 alone, as each form compiles for seconds",
    ),
    _entry(
        "torch-layer",
        "layer:mha",
        "projections, heads, attention and output projection written out",
        _STORAGE,
        operator="mha",
    ),
    *(
        Implementation(
            name=f"{name}-gradients",
            target=f"attention_conformance.impls.torch.{target}",
            operator=f"{operator}_grad",
            function_of=operator,
            framework=Framework.TORCH,
            prepare=f"attention_conformance.impls.torch.gradients:{prepare}",
            requires=("torch", "ml_dtypes"),
            dtypes=dtypes,
            profiles=profiles,
            summary=f"{name} and its backward pass, by autograd",
        )
        for name, target, operator, prepare, profiles, dtypes in (
            ("torch-eager", "eager:attention", "sdpa", "prepare", _STORAGE, DTYPES),
            ("torch-sdpa", "sdpa:attention", "sdpa", "prepare", _FUSED, DTYPES),
            ("torch-sdpa-math", "sdpa:math", "sdpa", "prepare", _WIDE, DTYPES),
            ("torch-sdpa-flash", "sdpa:flash", "sdpa", "prepare", _FUSED, DTYPES),
            ("torch-compile", "compiled:attention", "sdpa", "compiled", {}, ("float32",)),
            ("torch-layer", "layer:mha", "mha", "prepare", _STORAGE, DTYPES),
            ("torch-mha", "modules:functional", "mha", "prepare", _STORAGE, DTYPES),
            ("torch-mha-composed", "modules:composed", "mha", "prepare", _STORAGE, DTYPES),
        )
    ),
    _entry("torch-mha-fast", "modules:fast", "nn.MultiheadAttention, fast path", _STORAGE, operator="mha"),
    _entry("torch-mha-slow", "modules:slow", "nn.MultiheadAttention, slow path", _STORAGE, operator="mha"),
    _entry(
        "torch-sublayer", "layer:sublayer", "torch-layer with residual and layer_norm", _STORAGE, operator="sublayer"
    ),
)
