"""Public serving functions are plugged in by name only: every option that they have arrives, and a leak fails."""

from __future__ import annotations

import pytest

from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.conformance.ledger.load import Ledger
from attention_conformance.conformance.run_case import judge_case
from attention_conformance.conformance.targets import Target
from attention_conformance.conformance.tests import library_signatures as libraries
from attention_conformance.impls.calls import describe
from attention_conformance.impls.process.pool import Pool
from attention_conformance.impls.select import plug_in, with_attributes

#: Options that a function has in addition to causal, windows and a scale, which all have.
HAS = {
    "flash_attn_varlen_func": {"softcap", "return_lse"},
    "flash_attn_varlen_func_3": {"softcap", "return_lse"},
    "varlen_attn": {"return_lse"},
    "flash_attn_varlen_func_paged": {"softcap", "return_lse"},
    "flash_attn_with_kvcache": {"softcap", "return_lse", "k_new", "v_new"},
    "flash_attn_with_kvcache_3": {"softcap", "return_lse", "k_new", "v_new", "k_scale", "v_scale"},
    "unified_attention": {"softcap", "sinks", "k_scale", "v_scale"},
    "varlen_attn_paged": {"return_lse"},
}
#: Functions without a parameter for the number of splits of keys.
WITHOUT_SPLITS = ("flash_attn_varlen_func", "flash_attn_varlen_func_paged", "unified_attention")
#: Cases that show whether each option arrives, and plain ones, with holes and grouped heads.
VARLEN = (
    *("self", "cross", "causal-more-keys", "window", "window-causal", "scale", "softcap", "softcap-causal", "sinks"),
    *("grouped", "lse", "maxima", "empty-both"),
)
PAGED = (
    *("mixed", "decode", "shared", "lse", "padding", "window", "window-decode", "scale", "softcap", "softcap-decode"),
    *("sinks", "grouped", "empty", "new", "new-decode", "new-window", "quantised-int8-head", "quantised-int8-tensor"),
)
EVERY = {
    **{name: [f"varlen-{case}" for case in VARLEN] for name in libraries.OF_VARLEN},
    **{name: [f"paged-{case}" for case in PAGED] for name in libraries.OF_PAGED},
}


def plugged(name: str) -> Target:
    """A function, plugged in by name like a user's."""
    implementation = plug_in(f"{libraries.__name__}:{name}")
    described = describe(implementation)
    attributes = described.attributes | {"operator": described.operator}
    return Target(with_attributes(implementation, attributes), "cpu", "float32")


def outcomes(name: str, cases: list[str]) -> dict[str, tuple[Outcome, str]]:
    """The outcome of each case, and its reason."""
    target = plugged(name)
    keywords, found = describe(target.implementation).keywords, {}
    for case in cases:
        result = judge_case(target, every_case()[case], Pool(in_process=True), keywords, Ledger(), {}, None).result
        found[case] = (result.outcome, result.reason)
    return found


@pytest.mark.parametrize("name", EVERY)
def test_a_library_function_is_recognised_with_its_options(name: str) -> None:
    """Operator and keywords are recognised from the function's own signature."""
    described = describe(plugged(name).implementation)
    assert described.operator == EVERY[name][0].partition("-")[0]
    common = {"is_causal", "window", "scale", "max_seqlen_q", "max_seqlen_k"}
    assert described.keywords - {"num_splits"} == common | HAS[name]
    assert ("num_splits" in described.keywords) == (name not in WITHOUT_SPLITS)


@pytest.mark.parametrize("name", EVERY)
def test_every_option_arrives(name: str) -> None:
    """A right function passes every case whose options it has; the others are unsupported, and nothing fails."""
    if name.startswith("varlen_attn"):
        pytest.importorskip("torch.nn.attention.varlen")
    found = outcomes(name, EVERY[name])
    assert {case: told for case, told in found.items() if told[0] not in (Outcome.PASSED, Outcome.UNSUPPORTED)} == {}
    lacking = {"sinks", "softcap", "return_lse", "k_new", "v_new", "k_scale", "v_scale"} - HAS[name]
    unsupported = {case for case, (outcome, _) in found.items() if outcome is Outcome.UNSUPPORTED}
    expected = {case for case in EVERY[name] if every_case()[case].keywords & lacking}
    if name == "unified_attention":
        expected |= {case for case in EVERY[name] if not every_case()[case].inputs("float32").keywords.get("is_causal")}
        expected |= {"paged-quantised-int8-head"}
    assert unsupported == expected


@pytest.mark.parametrize("name", EVERY)
def test_a_leak_is_caught(name: str) -> None:
    """The same function with one key after the end of each sequence fails."""
    plain = "varlen-cross" if name in libraries.OF_VARLEN else "paged-decode"
    plain = "paged-window" if name == "unified_attention" else plain
    ((outcome, _),) = outcomes(f"{name}_leaking", [plain]).values()
    assert outcome is Outcome.FAILED


@pytest.mark.parametrize("name", ["heads_first", "interleaved"])
def test_caches_come_in_the_layout_that_a_function_declares(name: str) -> None:
    """Unordered and shared pages and scales pass; a single array takes only equal widths and no scales."""
    cases = ["paged-mixed", "paged-decode", "paged-shared", "paged-grouped", "paged-widths"]
    cases += ["paged-quantised-int8-token", "paged-quantised-int8-head"]
    found = {case: outcome for case, (outcome, _) in outcomes(name, cases).items()}
    refused = {case for case, outcome in found.items() if outcome is Outcome.UNSUPPORTED}
    quantised = {case for case in cases if "quantised" in case}
    assert refused == ({"paged-widths"} | quantised if name == "interleaved" else set())
    assert {found[case] for case in cases if case not in refused} == {Outcome.PASSED}


@pytest.mark.parametrize("name", ["heads_first_misread", "interleaved_misread"])
def test_a_cache_that_is_read_in_another_layout_is_caught(name: str) -> None:
    """A cache with slots taken for heads, or keys for values, fails."""
    assert {outcome for outcome, _ in outcomes(name, ["paged-mixed", "paged-decode"]).values()} == {Outcome.FAILED}
