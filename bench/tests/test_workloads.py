"""The grammar of workload names: which names read back, and with which words others are refused."""

from __future__ import annotations

from typing import Any

import pytest

from attention_conformance.bench.workloads import workload as workloads
from attention_conformance.bench.workloads.presets import KNOWN
from attention_conformance.bench.workloads.workload import Workload, WorkloadError, parse

ODD = Workload(3, 5, 80, 7, is_causal=True)
EVERYTHING = "prefill-b2h4g2d192v128s48-w16-cap50-bias-pad-grad"


@pytest.mark.parametrize("workload", [*KNOWN.values(), ODD], ids=lambda one: one.name)
def test_names_round_trip(workload: Workload) -> None:
    """The name of a workload reads back as that workload."""
    assert parse(workload.name) == workload


def test_a_name_is_terse_and_says_every_size() -> None:
    """Names have the documented form."""
    assert Workload(1, 8, 64, 1024, is_causal=True).name == "prefill-b1h8d64s1024-causal"
    assert Workload(1, 8, 64, 1, kind="decode", other=4096).name == "decode-b1h8d64s1k4096"


def test_every_part_is_read() -> None:
    """A name with all parts gives all of their values."""
    read = parse(EVERYTHING)
    assert (read.batch, read.heads, read.kv_heads, read.width, read.value_width, read.length) == (2, 4, 2, 192, 128, 48)
    assert (read.window, read.softcap, read.has_bias, read.is_padded, read.is_gradient) == (16, 50, True, True, True)
    assert read.is_causal
    assert read.operator == "sdpa_grad"
    assert read.name == EVERYTHING


def test_past_keys_of_decode_come_before_the_new_ones() -> None:
    """Four new tokens after 4096 have 4100 keys, and are causal implicitly."""
    read = parse("decode-b1h32g8d128s4k4096")
    assert (read.length, read.past, read.keys, read.is_causal, read.sweep) == (4, 4096, 4100, True, 4096)


def test_keys_of_cross_are_all_there_are() -> None:
    """Cross-attention has no past."""
    read = parse("cross-b1h8d64s128k1500")
    assert (read.length, read.past, read.keys, read.is_causal) == (128, 0, 1500, False)


@pytest.mark.parametrize(
    ("name", "operator"),
    [
        ("prefill-b1h8d64s128", "sdpa"),
        ("prefill-b1h8d64s128-grad", "sdpa_grad"),
        ("cross-b1h8d64s128k64-grad", "sdpa_grad"),
        ("decode-b1h8d64s1k64", "sdpa"),
        ("mha-b1h8d64s128", "mha"),
        ("sublayer-b1h8d64s128-pad", "sublayer"),
        ("merge-b8h32d128s1k8", "merge"),
        ("varlen-b1h8d64s128-causal", "varlen"),
        ("paged-b1h8d64s1k128", "paged"),
        ("blocks-b1h8d64s128", "sdpa"),
    ],
)
def test_a_kind_and_its_suffix_say_the_operator(name: str, operator: str) -> None:
    """Implementations of that operator run the workload."""
    assert parse(name.replace("b1", "b2")).operator == operator


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("prefil-b1h8d64s1024", "did you mean prefill-b1h8d64s1024"),
        ("train-b1h8d64s1024", "known: blocks, cross, decode, merge, mha, paged, prefill, sublayer, varlen"),
        ("prefill", "sizes are b<B>h<H>"),
        ("prefill-b1h8d64s0", "without leading zeros"),
        ("prefill-b01h8d64s128", "without leading zeros"),
        ("prefill-b1h8s128", "sizes are b<B>h<H>"),
        ("prefill-b1h8d64s128 ", "sizes are b<B>h<H>"),
        ("prefill-b1h8d64s128-full", "'full' is not a suffix"),
        ("prefill-b1h8d64s128-casual", "did you mean causal"),
        ("prefill-b1h8d64s128-w0", "'w0' is not a suffix"),
        ("prefill-b1h8d64s128-bf16", "'bf16' is not a suffix"),
        ("prefill-b1h8g8d64s128", "it is written prefill-b1h8d64s128"),
        ("prefill-b1h8d64v64s128", "it is written prefill-b1h8d64s128"),
        ("prefill-b1h8d64s128-causal-w16", "it is written prefill-b1h8d64s128-w16"),
        ("prefill-b1h8d64s128-grad-causal", "it is written prefill-b1h8d64s128-causal-grad"),
        ("prefill-b1h8d64s128-causal-causal", "it is written prefill-b1h8d64s128-causal"),
        ("prefill-b1h8g3d64s128", "3 key heads do not divide 8 query heads"),
        ("prefill-b1h8d64s128k64", "prefill has no part 'k'"),
        ("prefill-b1h8d64s128-pad", "pad needs more than one sequence"),
        ("cross-b1h8d64s128", "cross needs a number of keys"),
        ("cross-b1h8d64s128k128", "is a prefill"),
        ("cross-b1h8d64s128k64-causal", "cross has no part 'causal'"),
        ("decode-b1h8d64s1", "decode needs a number of keys"),
        ("decode-b1h8d64s1k64-grad", "decode has no part 'grad'"),
        ("decode-b1h8d64s1k64-causal", "it is written decode-b1h8d64s1k64"),
        ("mha-b1h8g2d64s128", "mha has no part 'g'"),
        ("sublayer-b1h8d64s128-grad", "sublayer has no part 'grad'"),
        ("varlen-b1h8d64s128-chat", "chat needs more than one sequence"),
        ("varlen-b2h8d64s128-mixed", "varlen has no part 'mixed'"),
        ("varlen-b2h8d64s128-chat-code", "it is written varlen-b2h8d64s128-chat"),
        ("paged-b2h8d64s1k128-mixed", "mixed needs more than one new token"),
        ("paged-b2h8d64s1k128-p16", "it is written paged-b2h8d64s1k128"),
        ("paged-b2h8d64s1k128-p0", "'p0' is not a suffix"),
        ("paged-b2h8d64s1k128-causal", "it is written paged-b2h8d64s1k128"),
        ("paged-b2h8d64s1", "paged needs a number of keys"),
        ("prefill-b2h8d64s128-chat", "prefill has no part 'chat'"),
    ],
)
def test_what_the_grammar_does_not_allow_is_refused(name: str, why: str) -> None:
    """A meaningless name, or one with a shorter form, is refused with the reason."""
    with pytest.raises(WorkloadError) as error:
        parse(name)
    assert repr(name) in str(error.value)
    assert why in str(error.value)


@pytest.mark.parametrize("part", ["window", "softcap", "length", "batch"])
def test_a_size_of_zero_has_no_name(part: str) -> None:
    """A workload that is not read from a name is refused as well."""
    sizes: dict[str, Any] = {"batch": 1, "heads": 8, "width": 64, "length": 128, part: 0}
    with pytest.raises(WorkloadError, match="sizes are at least 1"):
        Workload(**sizes)


def test_gradients_of_a_layer_need_their_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the operator mha_grad there is no such workload."""
    monkeypatch.setattr(workloads, "OPERATORS", {})
    with pytest.raises(WorkloadError, match="there is no operator mha_grad"):
        parse("mha-b1h8d64s128-grad")


def test_padded_sequences_have_different_lengths() -> None:
    """The lengths decrease from Sk in equal steps, and none is shorter than half of it."""
    assert parse("prefill-b4h1d8s16-pad").kv_lengths == (16, 14, 12, 10)
    assert parse("prefill-b2h1d8s16").kv_lengths == (16, 16)


def test_lengths_of_a_mix_have_the_proportions_of_its_trace() -> None:
    """Each sixteenth of the prompts occurs once, with the longest scaled to S and neighbours unlike each other."""
    rows = [rows for rows, _ in parse("varlen-b16h1d8s8178-chat").sequences]
    assert sorted(rows) == [2 * length for length in workloads.MIXES["chat"]]
    assert rows != sorted(rows)
    few = parse("paged-b4h1d8s1k1000-code").sequences
    assert sorted(keys - 1 for _, keys in few) == [45, 199, 399, 1000]  # 245, 1093, 2195 and 5511 of 5511, rounded up
    assert {rows for rows, _ in few} == {1}


def test_a_mixed_batch_has_a_piece_of_a_prompt_and_single_tokens() -> None:
    """Every sequence ends with its new tokens."""
    assert parse("paged-b3h1d8s4k12-mixed").sequences == ((4, 16), (1, 11), (1, 9))
    assert parse("paged-b3h1d8s4k12-mixed").tokens == 6


def test_packed_sequences_go_down_to_half_without_a_mix() -> None:
    """The lengths decrease as with padding."""
    assert parse("varlen-b4h1d8s16").sequences == ((16, 16), (14, 14), (12, 12), (10, 10))


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("prefill-b1h8d64s1024-causal", "prefill-b1h8d64s*-causal"),
        ("decode-b1h8d64s1k4096", "decode-b1h8d64s1k*"),
        ("cross-b1h8d64s128k1500", "cross-b1h8d64s*k1500"),
        ("paged-b2h8d64s1k1024-p64-chat", "paged-b2h8d64s1k*-p64-chat"),
        ("blocks-b2h8d64s1024-p128", "blocks-b2h8d64s*-p128"),
    ],
)
def test_a_family_leaves_one_length_open(name: str, family: str) -> None:
    """The open length is that of the query rows, or for decode that of the past keys."""
    assert parse(name).family == family
