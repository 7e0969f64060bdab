"""Known workloads: those of real models with their sources, sweeps, and the sets that ``--preset`` runs."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from attention_conformance.bench.workloads.workload import Workload, WorkloadError, parse
from attention_conformance.impls.loading import nearest
from attention_conformance.impls.operators import OPERATORS

#: Prefix of the names of models.
PREFIX = "model/"

#: Lengths of the default run: doublings, so that growth can be read off, as far as a short run on two cores allows.
LENGTHS = (128, 256, 512, 1024, 2048, 4096)

#: Lengths of the full sweeps.  Those that would take too long, or too much memory, as predicted from the shorter ones,
#: are skipped without a call.
LONG = (*LENGTHS, 8192, 16384, 32768, 65536)


@dataclass(frozen=True)
class Model:
    """An attention of a published model: its name here, its workload's name, and the source."""

    name: str
    workload: str
    #: The published shape, in half a sentence; lengths and batches that are ours are marked so.
    shape: str
    source: str
    link: str


_BERT = ("Devlin et al. 2018, §3", "https://arxiv.org/abs/1810.04805")
_GPT2 = ("configuration", "https://huggingface.co/openai-community/gpt2/blob/main/config.json")
_LLAMA = ("Grattafiori et al. 2024 (Llama 3), table 3", "https://arxiv.org/abs/2407.21783")
_MISTRAL = ("Jiang et al. 2023, table 1", "https://arxiv.org/abs/2310.06825")
_GEMMA = ("Gemma Team 2024 (Gemma 2), table 1 and §2", "https://arxiv.org/abs/2408.00118")
_VIT = ("Dosovitskiy et al. 2020, table 1", "https://arxiv.org/abs/2010.11929")
_WHISPER = ("Radford et al. 2022, table 1 and §2.2", "https://arxiv.org/abs/2212.04356")
_T5 = ("Raffel et al. 2019, §2.1 and §3.1", "https://arxiv.org/abs/1910.10683")
_BIGBIRD = (
    "Zaheer et al. 2020, §2; configuration",
    "https://huggingface.co/google/bigbird-roberta-base/blob/main/config.json",
)
_DEEPSEEK = ("DeepSeek-AI 2024 (DeepSeek-V3), §4.2", "https://arxiv.org/abs/2412.19437")

_BERT_SHAPE = "12 heads of 64, 512 positions, padded; batch 8 is ours"
_GPT2_SHAPE = "12 heads of 64, 1024 positions"
_LLAMA_SHAPE = "32 query and 8 key heads of 128 (width 4096)"

#: The table of bench/README.md.
MODELS = (
    Model("bert-base", "prefill-b8h12d64s512-pad", _BERT_SHAPE, *_BERT),
    Model("bert-base-layer", "mha-b8h12d64s512-pad", _BERT_SHAPE, *_BERT),
    Model("bert-base-sublayer", "sublayer-b8h12d64s512-pad", _BERT_SHAPE, *_BERT),
    Model("gpt2", "prefill-b1h12d64s1024-causal", _GPT2_SHAPE, *_GPT2),
    Model("gpt2-layer", "mha-b1h12d64s1024-causal", _GPT2_SHAPE, *_GPT2),
    Model("gpt2-gradients", "prefill-b1h12d64s1024-causal-grad", _GPT2_SHAPE, *_GPT2),
    Model("gpt2-decode", "decode-b1h12d64s1k1023", _GPT2_SHAPE, *_GPT2),
    Model("llama-3-8b-prefill", "prefill-b1h32g8d128s1024-causal", f"{_LLAMA_SHAPE}; length 1024 is ours", *_LLAMA),
    Model("llama-3-8b-prefill-8k", "prefill-b1h32g8d128s8192-causal", f"{_LLAMA_SHAPE}; 8192 positions", *_LLAMA),
    Model("llama-3-8b-decode", "decode-b1h32g8d128s1k8191", f"{_LLAMA_SHAPE}; 8192 positions", *_LLAMA),
    Model(
        "mistral-7b-prefill",
        "prefill-b1h32g8d128s8192-w4096",
        "32 query and 8 key heads of 128, window 4096, 8192 positions",
        *_MISTRAL,
    ),
    Model(
        "mistral-7b-decode",
        "decode-b1h32g8d128s1k8191-w4096",
        "32 query and 8 key heads of 128, window 4096, 8192 positions",
        *_MISTRAL,
    ),
    Model(
        "gemma-2-9b-local",
        "prefill-b1h16g8d256s8192-w4096-cap50",
        "16 query and 8 key heads of 256, softcap 50, window 4096 in every other layer, 8192 positions",
        *_GEMMA,
    ),
    Model(
        "gemma-2-9b-global",
        "prefill-b1h16g8d256s8192-causal-cap50",
        "16 query and 8 key heads of 256, softcap 50, 8192 positions",
        *_GEMMA,
    ),
    Model(
        "gemma-2-9b-short",
        "prefill-b1h16g8d256s1024-causal-cap50",
        "16 query and 8 key heads of 256, softcap 50; length 1024 is ours",
        *_GEMMA,
    ),
    Model(
        "vit-b-16", "prefill-b8h12d64s197", "12 heads of 64, 14·14 patches and a class token; batch 8 is ours", *_VIT
    ),
    Model(
        "whisper-small-cross",
        "cross-b1h12d64s448k1500",
        "12 heads of 64, 30 s of audio are 3000 frames, halved to 1500 keys; 448 tokens are the code's n_text_ctx",
        *_WHISPER,
    ),
    Model(
        "whisper-small-cross-step",
        "cross-b1h12d64s1k1500",
        "the same, one token at a time",
        *_WHISPER,
    ),
    Model(
        "t5-base",
        "prefill-b1h12d64s512-bias",
        "12 heads of 64, 512 positions, a relative position bias per head; its scale of 1 costs what any scale does",
        *_T5,
    ),
    Model(
        "deepseek-v3",
        "prefill-b1h128d192v128s1024-causal",
        "128 heads, D = 128 + 64 with rotary positions, Dv = 128; length 1024 is ours",
        *_DEEPSEEK,
    ),
    Model(
        "bigbird-base",
        "blocks-b1h12d64s4096",
        "12 heads of 64, 4096 positions in blocks of 64: 3 around a row's own, those at both ends, 3 random ones",
        *_BIGBIRD,
    ),
)


def _sweep(*names: str) -> tuple[Workload, ...]:
    return tuple(parse(name) for name in names)


def _lengths(form: str, lengths: Iterable[int]) -> tuple[Workload, ...]:
    return _sweep(*(form.format(length) for length in lengths))


_PLAIN = _lengths("prefill-b1h8d64s{}", LENGTHS)
_CAUSAL = _lengths("prefill-b1h8d64s{}-causal", LENGTHS)

#: One small workload of every operator other than plain sdpa.
SMALL = _sweep(
    "decode-b1h8d64s1k1024",
    "mha-b1h8d64s256",
    "sublayer-b1h8d64s256",
    "prefill-b1h8d64s256-grad",
    *(["mha-b1h8d64s128-grad"] if "mha_grad" in OPERATORS else []),
)

#: The default run.
DEFAULT = _PLAIN + SMALL

#: Options and batches, each one step from the plain form.
_OPTIONS = _sweep(
    "prefill-b1h8g2d64s1024-causal",
    "prefill-b1h8d64s1024-w128",
    "prefill-b1h8d64s1024-causal-cap50",
    "prefill-b1h8d64s1024-bias",
    "prefill-b4h8d64s512-pad",
    "cross-b1h8d64s128k1024",
    "decode-b1h8d64s128k1024",  # mixed: a piece of a prompt after a cache of the earlier tokens
)

#: Packed prompts and paged caches, with lengths of two services: prompts, steps of decoding, and both in one batch.
_SERVING = _sweep(
    "varlen-b8h8d64s1024-causal-chat",
    "varlen-b16h8d64s2048-causal-code",
    "varlen-b64h8d64s128",
    "paged-b16h32g8d128s1k2048-chat",
    "paged-b16h32g8d128s1k4096-code",
    "paged-b16h32g8d128s256k2048-chat-mixed",
)

#: Models that are small enough to be timed on two cores.
_OF_CPU = (
    "bert-base",
    "bert-base-layer",
    "bert-base-sublayer",
    "gpt2",
    "gpt2-layer",
    "gpt2-gradients",
    "gpt2-decode",
    "llama-3-8b-prefill",
    "llama-3-8b-decode",
    "mistral-7b-decode",
    "vit-b-16",
    "whisper-small-cross",
    "whisper-small-cross-step",
    "t5-base",
)

_BY_NAME = {model.name: parse(model.workload) for model in MODELS}

#: Values of ``--preset``.  Quick should take about two minutes on two cores for all built-ins in float32.
PRESETS = {
    "quick": _sweep("prefill-b1h8d64s512-causal") + SMALL,
    "standard": DEFAULT
    + _CAUSAL
    + _lengths("prefill-b1h8d64s{}-causal-grad", LENGTHS[:4])
    + _lengths("decode-b1h8d64s1k{}", LENGTHS)
    + _lengths("mha-b1h8d64s{}", LENGTHS[:4])
    + _OPTIONS
    + tuple(_BY_NAME[name] for name in _OF_CPU),
    "full": DEFAULT
    + _lengths("prefill-b1h8d64s{}", LONG)
    + _lengths("prefill-b1h8d64s{}-causal", LONG)
    + _lengths("prefill-b1h8d64s{}-w1024", LONG[4:])
    + _lengths("prefill-b1h8d64s{}-grad", LONG)
    + _lengths("prefill-b1h8d64s{}-causal-grad", LONG)
    + _lengths("decode-b1h8d64s1k{}", LONG)
    + _lengths("decode-b8h32g8d128s1k{}", LONG[3:])
    + _lengths("mha-b1h8d64s{}", LENGTHS)
    + _lengths("sublayer-b1h8d64s{}", LENGTHS)
    + _sweep("merge-b1h8d64s1024k2", "merge-b8h32d128s1k8", "merge-b1h32d128s512k2")
    + _SERVING
    + _lengths("blocks-b1h8d64s{}-p128", LONG[3:-1])
    + _sweep(*(f"prefill-b1h8d{width}s1024-causal" for width in (16, 32, 64, 80, 96, 128, 192, 256)))
    + _sweep(*(f"prefill-b{batch}h8d64s512-causal" for batch in (1, 2, 4, 8, 16, 32)))
    + _OPTIONS
    + tuple(_BY_NAME.values()),
}

#: Seconds that a cell of a preset may take unless ``--bench-seconds`` is given; those of "" without a preset.
SECONDS = {"": 0.6, "quick": 0.2, "standard": 1.5, "full": 3.0}

#: Threads of every library, unless ``--threads`` is given; without an entry as many as there are usable cores.  Runs of
#: ``quick`` are for comparing one with the other, and calls on one core scatter the least: on a virtual machine a
#: seventh as much as on two (``python -m studies comparisons``).
THREADS = {"quick": 1}

#: Workloads that a pattern is matched against, by name.
KNOWN: dict[str, Workload] = {
    **{workload.name: workload for workloads in PRESETS.values() for workload in workloads},
    **{PREFIX + name: workload for name, workload in _BY_NAME.items()},
}


def select(patterns: Sequence[str] = (), preset: str = "") -> tuple[Workload, ...]:
    """Workloads by names, glob patterns and a preset, all of them; DEFAULT if there are none.  Shortest first.

    Parameters
    ----------
    patterns
        Names, which need not be known and must only follow the grammar, and globs, which are matched against KNOWN.
    preset
        A key of PRESETS; "" for none.

    Returns
    -------
    tuple[Workload, ...]
        Each workload once, by family and then by length.

    Raises
    ------
    WorkloadError
        For a name against the grammar, a glob that matches nothing, and an unknown preset.
    """
    chosen: list[Workload] = []
    if preset:
        if preset not in PRESETS:
            raise WorkloadError(f"no preset {preset!r}{nearest(preset, PRESETS)}")
        chosen += PRESETS[preset]
    for pattern in patterns:
        if any(sign in pattern for sign in "*?["):
            chosen += _matching(pattern)
        elif pattern.startswith(PREFIX):
            if pattern not in KNOWN:
                names = [name for name in KNOWN if name.startswith(PREFIX)]
                raise WorkloadError(f"no workload {pattern!r}{nearest(pattern, names)}")
            chosen.append(KNOWN[pattern])
        else:
            chosen.append(parse(pattern))
    # Within a family the shorter one comes first: its cost predicts the longer one's.
    return tuple(sorted(dict.fromkeys(chosen or DEFAULT), key=lambda one: (one.family, one.sweep)))


def _matching(pattern: str) -> list[Workload]:
    matching = [workload for name, workload in KNOWN.items() if fnmatch.fnmatchcase(name, pattern)]
    if not matching:
        raise WorkloadError(f"no workload matches {pattern!r}{nearest(pattern, KNOWN)}")
    return matching
