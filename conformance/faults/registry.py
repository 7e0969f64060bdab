"""The register of faults: what each is called, which clause it breaks, and where it really happened."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from conformance.faults.anatomy import Attention

#: Where a tracker's short name leads; the sources of a fault begin with one of these names.
TRACKERS = {
    "FlagGems": "FlagOpen/FlagGems",
    "FlashMLA": "deepseek-ai/FlashMLA",
    "SKaiNET": "SKaiNET-developers/SKaiNET",
    "SageAttention": "thu-ml/SageAttention",
    "TransformerEngine": "NVIDIA/TransformerEngine",
    "brevitas": "Xilinx/brevitas",
    "cudnn-frontend": "NVIDIA/cudnn-frontend",
    "cubecl": "tracel-ai/cubecl",
    "diffusers": "huggingface/diffusers",
    "executorch": "pytorch/executorch",
    "fairseq": "facebookresearch/fairseq",
    "flash-attention": "Dao-AILab/flash-attention",
    "flashinfer": "flashinfer-ai/flashinfer",
    "flax": "google/flax",
    "iree": "iree-org/iree",
    "jax": "jax-ml/jax",
    "keras": "keras-team/keras",
    "lightning-attention": "OpenNLPLab/lightning-attention",
    "llama.cpp": "ggml-org/llama.cpp",
    "ml_dtypes": "jax-ml/ml_dtypes",
    "mlx": "ml-explore/mlx",
    "onnx": "onnx/onnx",
    "onnxruntime": "microsoft/onnxruntime",
    "onnxscript": "microsoft/onnxscript",
    "openvino": "openvinotoolkit/openvino",
    "pytorch": "pytorch/pytorch",
    "pytorch-image-models": "huggingface/pytorch-image-models",
    "sglang": "sgl-project/sglang",
    "torch-mlir": "llvm/torch-mlir",
    "torch-xpu-ops": "intel/torch-xpu-ops",
    "transformers": "huggingface/transformers",
    "triton": "triton-lang/triton",
    "vit-pytorch": "lucidrains/vit-pytorch",
    "vllm": "vllm-project/vllm",
    "xformers": "facebookresearch/xformers",
    "zml": "zml/zml",
}


@dataclass(frozen=True)
class Fault:
    """A known wrong way to compute attention."""

    #: Its name in tables: "causal-bottom-right".
    name: str
    #: The clause that it breaks.
    clause: str
    #: What it does, as a diagnosis says it: "causal mask aligned bottom-right".
    title: str
    #: Threads ("pytorch 103963", "onnx PR 8068"), or "source 001" of the five articles.
    sources: tuple[str, ...]
    make: type[Attention] = field(repr=False)

    @property
    def attribute(self) -> str:
        """Its name as a plug-in: ``conformance.faults:`` and this."""
        return self.name.replace("-", "_")

    @property
    def group(self) -> str:
        """The class of mistakes that it belongs to: its module."""
        return self.make.__module__.rpartition(".")[2]

    @property
    def when(self) -> str:
        """What it does and when it shows: the class's docstring."""
        return (self.make.__doc__ or "").strip()


FAULTS: dict[str, Fault] = {}

Class = TypeVar("Class", bound=type[Attention])


def fault(clause: str, title: str, *sources: str) -> Callable[[Class], Class]:
    """Register a subclass of Attention that overrides a step; its name in kebab case is the fault's.

    Raises ValueError for a second fault of the same name or one without a source.
    """

    def register(make: Class) -> Class:
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", make.__name__).lower()
        if name in FAULTS or not sources:
            raise ValueError(f"fault {name}: registered twice, or without a source")
        FAULTS[name] = Fault(name, clause, title, sources, make)
        return make

    return register


def link(source: str) -> str:
    """The address of a source, or "" for one of the articles.  Raises KeyError for an unknown tracker."""
    tracker, _, number = source.rpartition(" ")
    if tracker == "source":
        return ""
    tracker, pull = tracker.removesuffix(" PR"), tracker.endswith(" PR")
    return f"https://github.com/{TRACKERS[tracker]}/{'pull' if pull else 'issues'}/{number}"
