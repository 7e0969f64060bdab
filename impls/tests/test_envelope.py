"""Envelopes: sizes, what is outside, declarations, and the probe."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attention_conformance.impls import envelope_probe
from attention_conformance.impls.contract import Framework, Implementation, ImplementationError
from attention_conformance.impls.envelope import AXES, Envelope, Sizes
from attention_conformance.impls.envelope_probe import classified, probe
from attention_conformance.impls.loading import attributes_of
from attention_conformance.impls.select import with_attributes

KERNEL = Envelope(
    head_widths=Sizes((64, 128)),
    value_widths=Sizes((64, 128)),
    equal_widths=True,
    query_lengths=Sizes(multiple=64, least=64),
    key_lengths=Sizes(multiple=64, least=64),
    length_relation="Sq = Sk",
)


def shape(**sizes: int) -> Any:
    """Sizes of a call that the kernel takes, changed by those given."""
    return SimpleNamespace(**{"b": 1, "hq": 2, "hkv": 2, "sq": 64, "sk": 64, "d": 64, "dv": 64, **sizes})


@pytest.mark.parametrize(
    ("declared", "inside", "outside"),
    [
        (64, [64], [0, 63, 128]),
        ((64, 128), [64, 128], [96]),
        ("multiple of 16", [16, 32, 128], [0, 8, 24]),
        ("multiple of 8 up to 256", [8, 256], [264, 4]),
        ("up to 128", [1, 128], [0, 129]),
        ("at least 2", [2, 1000], [1]),
        ("2 to 4", [2, 3, 4], [1, 5]),
        ("any", [0, 1, 7], []),
    ],
)
def test_sizes_are_read_and_decide(declared: Any, inside: list[int], outside: list[int]) -> None:
    """Each form of a declaration includes exactly the sizes that it names."""
    sizes = Sizes.read(declared)
    assert [n for n in inside if n not in sizes] == []
    assert [n for n in outside if n in sizes] == []


@pytest.mark.parametrize("declared", ["sixty-four", "multiple of 0", "", (), (-1,), 1.5, (64, "128"), None, True])
def test_what_is_no_size_is_refused(declared: Any) -> None:
    """A value that is no size is refused with a sentence that says what may be declared."""
    with pytest.raises(ValueError, match="multiple of N"):
        Sizes.read(declared)


@pytest.mark.parametrize(
    ("sizes", "what"),
    [
        ({"d": 96, "dv": 96}, "D = 96"),
        ({"dv": 128}, "Dv = D"),
        ({"sq": 65, "sk": 65}, "Sq = 65"),
        ({"sk": 128}, "Sq = 64 with Sk = 128"),
    ],
)
def test_a_call_outside_says_what_is_outside(sizes: dict[str, int], what: str) -> None:
    """The reason has the axis, its size, and what is taken."""
    assert shape() in KERNEL
    assert shape(**sizes) not in KERNEL
    assert any(what in text for text in KERNEL.outside(shape(**sizes)))


def test_the_line_can_be_checked_by_a_person() -> None:
    """The line has dtypes, widths, lengths, their relation, groups, exclusive options, and what is lacking."""
    envelope = Envelope(
        **{**vars(KERNEL), "group_sizes": Sizes(least=1, most=8), "not_together": (frozenset({"window", "softcap"}),)}
    )
    assert envelope.line(["float16", "bfloat16"], ["sinks"]) == (
        "float16, bfloat16; D = Dv in 64, 128; Sq, Sk multiples of 64, Sq = Sk; groups up to 8;"
        " not softcap with window; no sinks"
    )


def declared(**attributes: Any) -> Implementation:
    """A plug-in whose function has these attributes."""
    return with_attributes(Implementation("it", "m:f", folder="/"), attributes)


def test_a_function_declares_its_envelope_by_attributes() -> None:
    """``lengths`` means both lengths, and an attribute for one length overrides it."""
    found = declared(head_widths=(64, 128), lengths="multiple of 128", query_lengths=1).envelope
    assert found.head_widths == Sizes((64, 128))
    assert found.key_lengths == Sizes(multiple=128, least=128)
    assert found.query_lengths == Sizes((1,))
    assert found.source == "declared"


@pytest.mark.parametrize(
    "attributes",
    [
        {"head_widths": "wide"},
        {"length_relation": "Sq ~ Sk"},
        {"not_together": [("window", "sofcap")]},
        {"not_together": [("window",)]},
    ],
)
def test_a_declaration_that_is_not_understood_is_refused(attributes: dict[str, Any]) -> None:
    """A declaration that is not understood is refused in one sentence with the implementation's name."""
    with pytest.raises(ImplementationError, match="it: its attributes are not understood"):
        declared(**attributes)


def test_a_method_is_no_declaration() -> None:
    """A method of that name declares nothing, and neither does an object with an unrelated ``heads``."""

    class Attention:
        heads = 8

        def lengths(self) -> None: ...

        def __call__(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
            return v

    assert attributes_of(Attention()) == {}


def test_options_apart_are_those_that_a_call_gives_together() -> None:
    """Options that exclude each other are found only in a call that gives them together."""
    envelope = declared(not_together=[("window", "softcap")]).envelope
    assert envelope.apart({"window", "softcap", "scale"}) == {"window", "softcap"}
    assert envelope.apart({"window", "scale"}) == frozenset()


def test_the_axes_are_all_that_a_shape_has() -> None:
    """The axes are listed in the order in which results write them."""
    assert list(AXES.values()) == ["B", "Hq", "Hkv", "Sq", "Sk", "D", "Dv"]


# The probe.


def kernel(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Half precision, width 64 or 128, Sq = Sk in multiples of 64."""
    sizes = shape(b=len(q), hq=q.shape[1], hkv=k.shape[1], sq=q.shape[2], sk=k.shape[2], d=q.shape[3], dv=v.shape[3])
    if q.dtype == np.float64 or q.dtype == np.float32 or sizes not in KERNEL or sizes.hq != sizes.hkv:
        raise NotImplementedError("not this")
    return np.zeros((*q.shape[:3], v.shape[3]), q.dtype)


def anything(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Every call, in single precision."""
    if q.dtype != np.float32:
        raise NotImplementedError("float32 only")
    return np.zeros((*q.shape[:3], v.shape[3]), q.dtype)


def nothing(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """No call."""
    raise NotImplementedError("no such GPU")


def broken(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """An exception that is no refusal."""
    raise ValueError("shapes do not match")


def fixed(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """One fixed shape, like a model that was exported with it."""
    if (q.shape, k.shape, v.shape) != ((1, 8, 128, 64),) * 3:
        raise NotImplementedError("fixed")
    return v


def probed(name: str) -> Any:
    """The probe's result for one of the functions above."""
    return probe(Implementation(name, f"{__name__}:{name}", framework=Framework.NUMPY), "cpu")


def test_a_probe_finds_the_envelope_of_a_kernel() -> None:
    """The probe finds every limit of the kernel, its dtypes, and the text of its refusals."""
    found = probed("kernel")
    assert found.dtypes == ("float16", "bfloat16")
    assert found.envelope == Envelope(**{**vars(KERNEL), "group_sizes": Sizes((1,)), "refusals": ()})
    assert any("not this" in text for text in found.envelope.refusals)


def test_a_probe_of_what_takes_the_plain_call_finds_no_limit_but_its_dtypes() -> None:
    """A function that takes the plain call has no limits; its dtypes are those that were not refused."""
    assert probed("anything").envelope.free
    assert probed("anything").dtypes == ("float32",)
    assert any("float32 only" in text for text in probed("anything").envelope.refusals)


def test_a_probe_that_nothing_is_taken_of_finds_nothing() -> None:
    """All cases run unchanged, and are refused; the probe says what to declare, with an example."""
    found = probed("nothing")
    assert found.envelope.free
    assert found.dtypes == ()
    assert found.envelope.disagreements == (envelope_probe.DECLARE,)
    assert "attention.head_widths = (64, 128)" in envelope_probe.DECLARE


def test_a_probe_that_ran_out_of_time_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe that ran out of time says so, since its result depends on the machine."""
    monkeypatch.setattr(envelope_probe, "LIMIT", -1.0)
    found = probed("kernel")
    assert found.dtypes == ()
    assert found.envelope.refusals == (envelope_probe.LATE,)


def test_an_exception_is_no_refusal() -> None:
    """An exception that is no refusal sets no limit: the cases will show it."""
    assert probed("broken").envelope.free
    assert probed("broken").dtypes == ("float64", "float32", "float16", "bfloat16")


def test_a_probe_finds_fixed_sizes() -> None:
    """Every axis of a model with fixed sizes has one size."""
    found = probed("fixed").envelope
    assert (found.batch_sizes, found.head_counts, found.key_head_counts) == (Sizes((1,)), Sizes((8,)), Sizes((8,)))
    assert (found.query_lengths, found.key_lengths, found.head_widths) == (Sizes((128,)), Sizes((128,)), Sizes((64,)))


# Declarations, and other operators.


def wide(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Half precision of width 128 or 96."""
    if q.dtype in (np.float64, np.float32) or q.shape[3] not in (96, 128) or v.shape[3] != q.shape[3]:
        raise NotImplementedError("half precision of width 96 or 128")
    return np.zeros((*q.shape[:3], v.shape[3]), q.dtype)


def short(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """At most sixteen queries of width 8."""
    if q.shape[2] > 16 or q.shape[3] != 8:
        raise NotImplementedError("too long")
    return np.zeros((*q.shape[:3], v.shape[3]), q.dtype)


def gradients(q: np.ndarray, k: np.ndarray, v: np.ndarray, grad_output: np.ndarray) -> tuple[np.ndarray, ...]:
    """Width 64."""
    if q.shape[3] != 64 or grad_output.shape != (*q.shape[:3], 64) or v.shape[3] != 64:
        raise NotImplementedError("width 64")
    return q, k, v


def packed(q: np.ndarray, k: np.ndarray, v: np.ndarray, cu_seqlens_q: np.ndarray, cu_seqlens_k: np.ndarray) -> Any:
    """Widths in multiples of 32, and one key head."""
    if q.shape[2] % 32 or k.shape[1] != 1 or q.shape[0] != cu_seqlens_q[-1] or k.shape[0] != cu_seqlens_k[-1]:
        raise NotImplementedError("multiples of 32, and one key head")
    return np.zeros((*q.shape[:2], v.shape[2]), q.dtype)


def paged(
    q: Any, k_cache: Any, v_cache: Any, cu_seqlens_q: Any, block_table: Any, kv_lengths: Any, *, is_causal: Any = False
) -> Any:
    """Causal, widths in multiples of 32, pages in multiples of 16."""
    if not is_causal or q.shape[2] % 32 or k_cache.shape[1] % 16 or v_cache.shape[3] != q.shape[2]:
        raise NotImplementedError("multiples of 32 and of 16")
    return np.zeros((*q.shape[:2], v_cache.shape[3]), q.dtype)


def merging(outputs: np.ndarray, lses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Widths in multiples of 4."""
    if outputs.shape[4] % 16:
        raise NotImplementedError("multiples of 16")
    return outputs[0], lses[0]


def looked_at(name: str, operator: str = "sdpa", *, dtypes: tuple[str, ...] = (), **attributes: Any) -> Any:
    """The probe's result for a function above that declares something."""
    framework, target = Framework.NUMPY, f"{__name__}:{name}"
    plain = Implementation(name, target, operator, framework=framework, folder="/")
    return probe(with_attributes(plain, attributes | ({"dtypes": dtypes} if dtypes else {})), "cpu", bool(dtypes))


def test_dtypes_are_probed_inside_what_is_declared() -> None:
    """Dtypes are probed inside the declared widths where a function declares no dtypes."""
    found = looked_at("wide", head_widths=(96, 128), equal_widths=True)
    assert found.dtypes == ("float16", "bfloat16")
    assert found.envelope == Envelope(head_widths=Sizes((96, 128)), equal_widths=True)
    assert found.envelope.source == "declared"
    assert found.envelope.disagreements == ()


def test_a_declared_size_that_is_refused_is_told() -> None:
    """A declared size that is refused is reported with the refusal's text; the declaration stays."""
    found = looked_at("wide", dtypes=("float16",), head_widths=(64, 128), equal_widths=True)
    assert found.envelope.head_widths == Sizes((64, 128))
    refused, besides = found.envelope.disagreements
    assert refused.startswith("declared D in 64, 128; refused: D = 64 (NotImplementedError: half precision")
    assert besides == "D = 96 is taken too, which head_widths does not name: declare or refuse it"


def test_declared_lengths_and_dtypes_that_are_refused_are_told() -> None:
    """Each axis is reported separately; dtypes also where no size is declared."""
    (line,) = looked_at("short", dtypes=("float32",), head_widths=8, query_lengths=(4, 16, 32)).envelope.disagreements
    assert line == "declared Sq in 4, 16, 32; refused: Sq = 32 (NotImplementedError: too long)"
    (line,) = looked_at("anything", dtypes=("float32", "float16")).envelope.disagreements
    assert line == "declared float32, float16; refused: float16 (NotImplementedError: float32 only)"


def test_a_declaration_of_which_nothing_is_taken_is_told() -> None:
    """One line has the first refusal, also if lengths are not declared, or says that no size is inside."""
    (line,) = looked_at("nothing", head_widths=64).envelope.disagreements
    assert line.startswith("nothing that is declared is taken: NotImplementedError: no such GPU (q (2, 2, 5, 64)")
    (line,) = looked_at("kernel", head_widths=64, head_counts=3, group_sizes=2).envelope.disagreements
    assert line == "the declared envelope contains no size"
    (line,) = looked_at("kernel", dtypes=("float16",), head_widths=(64, 128), equal_widths=True).envelope.disagreements
    assert line.startswith("a call inside what is declared is refused: NotImplementedError: not this (q (2, 2, 5, 64)")


def test_a_probe_of_gradients_finds_their_envelope() -> None:
    """The probe calls with the gradient of the output."""
    found = looked_at("gradients", "sdpa_grad").envelope
    assert (found.head_widths, found.key_lengths, found.source) == (Sizes((64,)), Sizes(), "probed")


def test_a_probe_of_packed_attention_finds_widths_and_heads() -> None:
    """Lengths stay free, since they are what a case is about."""
    found = looked_at("packed", "varlen").envelope
    assert found.head_widths == Sizes(multiple=32, least=32)
    assert found.key_head_counts == Sizes((1,))
    assert (found.query_lengths, found.batch_sizes) == (Sizes(), Sizes())


def test_a_probe_of_paged_attention_finds_pages_too() -> None:
    """A kernel that is always causal is probed with causal calls if no other call is taken."""
    found = looked_at("paged", "paged").envelope
    assert found.head_widths == Sizes(multiple=32, least=32)
    assert found.page_sizes == Sizes(multiple=16, least=16)
    assert "pages multiples of 16" in found.line(["float16"])


def test_a_probe_of_merging_finds_widths() -> None:
    """The widths are those of the outputs of two parts."""
    assert looked_at("merging", "merge").envelope.head_widths == Sizes(multiple=16, least=16)


def test_sizes_that_were_taken_are_classified_in_the_simplest_way() -> None:
    """Sizes that were taken are described as everything, multiples, a limit, or a list."""
    tried = (1, 7, 16, 32, 48, 64, 128, 256)
    assert classified(tried, tried) == Sizes()
    assert classified(tried, (16, 32, 48, 64, 128, 256)) == Sizes(multiple=16, least=16)
    assert classified(tried, (16, 32, 48, 64, 128)) == Sizes(multiple=16, least=16, most=128)
    assert classified(tried, (1, 7, 16)) == Sizes(least=1, most=16)
    assert classified(tried, (64, 256)) == Sizes((64, 256))
