"""Titles of workloads: the names that people use."""

from __future__ import annotations

import pytest

from attention_conformance.bench.workloads.presets import KNOWN, MODELS
from attention_conformance.bench.workloads.titles import NAMES, title


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("prefill-b1h32g8d128s1024-causal", "Llama 3 8B, prefill 1,024"),
        ("decode-b1h32g8d128s1k8191", "Llama 3 8B, decoding 1 token after 8,191"),
        ("cross-b1h12d64s1k1500", "Whisper small, cross-attention, 1 query on 1,500 keys"),
        ("prefill-b8h12d64s197", "ViT-B/16, batch 8, prefill 197"),
        ("prefill-b1h8g2d64s1024-causal-cap50", "8 heads of 64 on 2, prefill 1,024, causal, softcap 50"),
        ("prefill-b1h8d64s*-causal-grad", "8 heads of 64, gradients of prefill, causal"),
        ("paged-b16h32g8d128s1k*-chat", "32 heads of 128 on 8, 16 paged sequences, 1 token, lengths of chat"),
    ],
)
def test_a_title_has_the_model_or_the_heads_and_the_length(name: str, expected: str) -> None:
    """Options are listed unless they are the model's own; an open length is left out."""
    assert title(name) == expected


def test_heads_of_a_model_with_other_options_are_not_called_by_it() -> None:
    """Llama's heads without causal are titled 32 heads."""
    assert title("prefill-b1h32g8d128s1024") == "32 heads of 128 on 8, prefill 1,024"


def test_what_is_no_name_of_the_grammar_is_its_own_title() -> None:
    """Files may contain any name."""
    assert title("<b>mine</b>") == "<b>mine</b>"


def test_every_model_has_a_name_that_people_call_it() -> None:
    """No known workload has another one's title."""
    assert all(any(model.name.startswith(start) for start in NAMES) for model in MODELS)
    names = {workload.name for workload in KNOWN.values()}
    assert len({title(name) for name in names}) == len(names)
