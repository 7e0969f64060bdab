"""Implementations in PyTorch."""

from __future__ import annotations

from typing import Any

from attention_conformance.impls.contract import DTYPES, Framework, Implementation, Profile
from attention_conformance.impls.envelope import Envelope, Sizes

#: The composition computes half precision in float32 throughout (unless torch.backends.cuda is set to reduce in it).
_WIDE = dict.fromkeys(("float16", "bfloat16"), Profile.WIDE)
#: Flash kernels keep scores in float32 and round the weights before the product with v; so does uncompiled flex
#: attention.
_FUSED = dict.fromkeys(("float16", "bfloat16"), Profile.FUSED)
#: Every tensor between two operations is in the dtype of the inputs.
_STORAGE = dict.fromkeys(("float16", "bfloat16"), Profile.STORAGE)
#: Compiled code takes any two lengths; another size of another axis would be another form.
_ONE_FORM = Envelope.declared(
    {
        "batch_sizes": 2,
        "head_counts": 2,
        "key_head_counts": 2,
        "head_widths": 16,
        "value_widths": 16,
        "key_lengths": "any",
    },
    (),
)


def _entry(name: str, target: str, summary: str, profiles: dict[str, Profile], **fields: Any) -> Implementation:
    """A record with the common fields of PyTorch's; ``target`` is relative to this folder."""
    return Implementation(
        name=name,
        target=f"attention_conformance.impls.torch.{target}",
        framework=Framework.TORCH,
        requires=("torch", "ml_dtypes"),
        profiles=profiles,
        summary=summary,
        # Functions that Dynamo traces take seconds, and are judged in parallel with the rest, in two other processes.
        worker="" if "case_seconds" not in fields else "torch-flex" if target.startswith("flex:") else "torch-dynamo",
        **fields,
    )


def _gradients(
    name: str,
    target: str,
    operator: str,
    profiles: dict[str, Profile],
    dtypes: tuple[str, ...] = DTYPES,
    prepare: str = "prepare",
    **fields: Any,
) -> Implementation:
    return _entry(
        f"{name}-gradients",
        target,
        f"{name} and its backward pass, by autograd",
        profiles,
        operator=f"{operator}_grad",
        function_of=operator,
        prepare=f"attention_conformance.impls.torch.gradients:{prepare}",
        dtypes=dtypes,
        **fields,
    )


IMPLEMENTATIONS: tuple[Implementation, ...] = (
    _entry("torch-eager", "eager:attention", "matmul, softmax, matmul in the dtype of the inputs", _STORAGE),
    _entry("torch-sdpa", "sdpa:attention", "scaled_dot_product_attention, kernel as dispatched", _FUSED),
    _entry("torch-sdpa-math", "sdpa:math", "scaled_dot_product_attention, composition forced", _WIDE),
    _entry(
        "torch-sdpa-flash",
        "sdpa:flash",
        "scaled_dot_product_attention, flash kernel forced",
        _FUSED,
        refuses={"cuda": ("mask", "bias")},  # "Flash Attention does not support non-null attn_mask."
    ),
    _entry(
        "torch-sdpa-efficient",
        "sdpa:efficient",
        "scaled_dot_product_attention, memory-efficient kernel forced",
        _FUSED,
        devices=("cuda",),
    ),
    _entry(
        "torch-sdpa-cudnn",
        "sdpa:cudnn",
        "scaled_dot_product_attention, cuDNN kernel forced",
        _FUSED,
        devices=("cuda",),
    ),
    _entry(
        "torch-flash-aten",
        "sdpa:aten",
        "the operator that is scaled_dot_product_attention's flash kernel on the CPU, which returns lse",
        {},
        dtypes=("float32", "float64"),
        devices=("cpu",),
    ),
    _entry(
        "torch-blocks",
        "blocks:block_sparse",
        "block masks and trees as the mask of scaled_dot_product_attention",
        _FUSED,
    ),
    _entry("torch-flex", "flex:attention", "flex_attention, not compiled", _FUSED, case_seconds=0.15),
    _entry(
        "torch-flex-compile",
        "flex:plain",
        "flex_attention under torch.compile; no keyword, float32 and one batch, head count and width only, as each"
        " form compiles for seconds",
        {},
        prepare="attention_conformance.impls.torch.compiled:compiled",
        dtypes=("float32",),
        devices=("cpu",),
        case_seconds=0.05,
        envelope=_ONE_FORM,
    ),
    _entry(
        "torch-compile",
        "compiled:attention",
        "torch-eager under torch.compile; three keywords and float32 only, as each form compiles for seconds",
        {},
        prepare="attention_conformance.impls.torch.compiled:compiled",
        dtypes=("float32",),
        case_seconds=0.25,
    ),
    _entry(
        "torch-layer",
        "layer:mha",
        "projections, heads, attention and output projection written out",
        _STORAGE,
        operator="mha",
    ),
    _gradients("torch-eager", "eager:attention", "sdpa", _STORAGE),
    _gradients("torch-sdpa", "sdpa:attention", "sdpa", _FUSED),
    _gradients("torch-sdpa-math", "sdpa:math", "sdpa", _WIDE),
    _gradients("torch-sdpa-flash", "sdpa:flash", "sdpa", _FUSED),
    _gradients("torch-compile", "compiled:attention", "sdpa", {}, ("float32",), "compiled", case_seconds=0.7),
    _gradients("torch-layer", "layer:mha", "mha", _STORAGE),
    _gradients("torch-mha", "modules:functional", "mha", _STORAGE),
    _gradients("torch-mha-composed", "modules:composed", "mha", _STORAGE),
    _entry("torch-mha-fast", "modules:fast", "nn.MultiheadAttention, fast path", _STORAGE, operator="mha"),
    _entry("torch-mha-slow", "modules:slow", "nn.MultiheadAttention, slow path", _STORAGE, operator="mha"),
    _entry(
        "torch-mha-hint",
        "modules:hinted",
        "nn.MultiheadAttention, slow path, with is_causal beside the caller's own attn_mask",
        _STORAGE,
        operator="mha",
        dtypes=("float32",),
    ),
    _entry(
        "torch-varlen-padded",
        "varlen:padded",
        "packed sequences padded and masked for scaled_dot_product_attention",
        _FUSED,
        operator="varlen",
    ),
    _gradients("torch-varlen-padded", "varlen:padded", "varlen", _FUSED),
    _entry(
        "torch-varlen-flex",
        "varlen:flex",
        "packed sequences in flex_attention with a mask by document, not compiled",
        _FUSED,
        operator="varlen",
        case_seconds=0.2,
    ),
    _entry(
        "torch-varlen-nested",
        "serving:nested",
        "packed sequences as nested tensors (torch.jagged) in scaled_dot_product_attention",
        _STORAGE,
        operator="varlen",
        envelope=Envelope(group_sizes=Sizes((1,)), source="declared"),
    ),
    _entry(
        "torch-paged-flex",
        "serving:paged",
        "torch.nn.attention.experimental's PagedAttention with flex_attention, not compiled",
        _FUSED,
        operator="paged",
        case_seconds=0.12,
    ),
    _entry(
        "torch-paged",
        "varlen:paged",
        "a paged cache, gathered by its table, padded and masked for scaled_dot_product_attention",
        _FUSED,
        operator="paged",
    ),
    _entry(
        "torch-sublayer", "layer:sublayer", "torch-layer with residual and layer_norm", _STORAGE, operator="sublayer"
    ),
    _entry(
        "torch-latent",
        "latent:latent",
        "keys and values of each head from latents, by torch-eager",
        _STORAGE,
        operator="latent",
    ),
    _entry("torch-merge", "merge:merge", "logsumexp and a weighted sum over the parts", _WIDE, operator="merge"),
    _gradients("torch-merge", "merge:merge", "merge", _WIDE),
    _entry(
        "torch-context-parallel",
        "merge:context_parallel",
        "the merger of torch.distributed's ring attention, one part after the other",
        _WIDE,
        operator="merge",
    ),
)
