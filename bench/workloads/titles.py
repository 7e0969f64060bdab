"""Titles of workloads: plain words for a shape, in addition to its name: "Llama 3 8B, prefill 1,024"."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

from attention_conformance.bench.workloads.presets import MODELS
from attention_conformance.bench.workloads.workload import PACKED, Workload, WorkloadError, parse

#: Placeholder for the length that a family leaves open, while its title is made.
_OPEN = 999_983

#: Common names of the models, by the start of their names in ``MODELS``.
NAMES = {
    "bert-base": "BERT base",
    "gpt2": "GPT-2",
    "llama-3-8b": "Llama 3 8B",
    "mistral-7b": "Mistral 7B",
    "gemma-2-9b": "Gemma 2 9B",
    "vit-b-16": "ViT-B/16",
    "whisper-small": "Whisper small",
    "t5-base": "T5 base",
    "deepseek-v3": "DeepSeek-V3",
    "bigbird-base": "BigBird base",
}


@functools.cache
def title(name: str) -> str:
    """The title of a workload or of a family.

    Parameters
    ----------
    name : of a workload, as ``prefill-b1h32g8d128s1024-causal``, or of a family, whose open length is ``*``.

    Returns
    -------
    str
        Model or heads, then the action and the number of tokens; the name itself where it does not follow the grammar,
        as files may have any name.
    """
    is_open = "*" in name
    try:
        workload = parse(name.replace("*", str(_OPEN)))
    except WorkloadError:
        return name
    model = next((each.name for each in MODELS if _shape(each.workload) == _shape(name)), None)
    who = NAMES[max(filter(model.startswith, NAMES), key=len)] if model else _heads(workload)
    batch = [f"batch {workload.batch}"] if workload.batch > 1 and workload.kind not in PACKED else []
    start = "gradients of " if workload.is_gradient else ""
    act = start + _ACTS[workload.kind](workload, "" if is_open else f" {workload.sweep:,}")
    return ", ".join([who, *batch, act, *_options(workload, of_model=model is not None)])


def _heads(w: Workload) -> str:
    """The heads of a workload that is not a model's."""
    heads = f"{w.heads} heads of {w.width}" if w.heads > 1 else f"1 head of {w.width}"
    heads += f" on {w.kv_heads}" if w.kv_heads != w.heads else ""
    return heads + (f", values of {w.value_width}" if w.value_width != w.width else "")


@functools.cache
def _shape(name: str) -> str:
    """Name without lengths, which workloads of one model and use share."""
    return re.sub(r"s(?:\d+|\*)(?:k(?:\d+|\*))?(?=-|$)", "s*", name)


def _options(w: Workload, *, of_model: bool) -> list[str]:
    """Options in words; for a model only the window, which not all of its layers have: its name implies the others."""
    window = {f"window {w.window}": w.window is not None}
    said = (
        window
        if of_model
        else window
        | {
            "causal": "causal" in w.suffixes,
            f"softcap {w.softcap}": w.softcap is not None,
            "with a bias": w.has_bias,
            "padded": w.is_padded,
            f"{'blocks' if w.kind == 'blocks' else 'pages'} of {w.page}": f"p{w.page}" in w.suffixes,
            f"lengths of {w.mix}": bool(w.mix),
            "one prompt among single tokens": w.is_mixed,
        }
    )
    return [text for text, given in said.items() if given]


def _many(count: int, noun: str, plural: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count:,} {plural}"


#: Action of each kind, from a workload and the text of its length, which is empty where a family leaves it open.
_ACTS: dict[str, Callable[[Workload, str], str]] = {
    "prefill": lambda w, n: f"prefill{n}",
    "cross": lambda w, n: f"cross-attention{n and ', ' + _many(w.length, 'query', 'queries')} on {w.other:,} keys",
    "decode": lambda w, n: f"decoding {_many(w.length, 'token', 'tokens')}{n and ' after' + n}",
    "mha": lambda w, n: f"layer{n}",
    "sublayer": lambda w, n: f"sub-layer{n}",
    "merge": lambda w, n: f"merging {w.other} parts{n and ' of ' + _many(w.length, 'row', 'rows')}",
    "varlen": lambda w, n: f"{w.batch} packed sequences{n and ' up to' + n}",
    "paged": lambda w, n: f"{w.batch} paged sequences, {_many(w.length, 'token', 'tokens')}{n and ' after up to' + n}",
    "blocks": lambda w, n: f"block-sparse prefill{n}",
}
