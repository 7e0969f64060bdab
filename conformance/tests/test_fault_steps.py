"""Steps: a fault whose steps equal the correct ones is not computed again, and no other fault is taken for one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.diagnosis.explanation import combined
from attention_conformance.conformance.faults import FAULTS
from attention_conformance.conformance.faults.models import steps
from attention_conformance.conformance.faults.models.mha import Layer
from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs, Model
from attention_conformance.conformance.faults.models.steps import adds_nothing, correct, unchanged
from attention_conformance.conformance.faults.models.tiles import TILED
from attention_conformance.conformance.run_case import request
from attention_conformance.impls.calls import Reply, call, same_bits
from attention_conformance.impls.contract import Implementation

#: Small cases of each operator, with options, an invalid one, and one of another memory layout.
CASES = {
    "sdpa": (
        "plain",
        "causal-more-keys",
        "mask",
        "bias",
        "empty-row",
        "softcap",
        "sinks",
        "lengths-zero",
        "block-mask-small",
        "tree",
    ),
    "mha": ("mha-plain", "mha-mask", "mha-weights"),
    "sublayer": ("sublayer-causal",),
    "sdpa_grad": ("grad-mask",),
    "mha_grad": ("mha-grad-mask",),
    "varlen": ("varlen-causal-more-keys", "varlen-empty-both", "varlen-maxima-window", "varlen-invalid-boundaries"),
    "varlen_grad": ("varlen-grad-causal-more-keys", "varlen-grad-empty-both", "varlen-grad-invalid-grad-output"),
    "paged": ("paged-mixed", "paged-empty", "paged-new-window", "paged-invalid-table"),
    "latent": ("latent-one-head", "latent-lse", "latent-invalid-rank"),
    "merge": ("merge-two", "merge-empty-all-row", "merge-invalid-parts"),
    "merge_grad": ("merge-grad-lse", "merge-grad-empty-all-row", "merge-grad-invalid-grad-lse"),
}


def computed(make: type[Model], name: str) -> Reply:
    """The reply of a new instance to a case, with every step computed."""
    case = every_case()[name]
    return call(Implementation("whole", "none:none", operator=case.operator), request(case, "float32", "cpu"), make())


def equal(a: Reply, b: Reply) -> bool:
    """Whether two replies are equal, bit by bit."""
    said = (a.status, a.text, a.modified, a.unequal) == (b.status, b.text, b.modified, b.unequal)
    return (
        said and a.results.keys() == b.results.keys() and all(same_bits(a.results[n], b.results[n]) for n in a.results)
    )


def known(operator: str) -> Iterator[str]:
    """The existing cases among those above."""
    return (name for name in CASES[operator] if name in every_case() and "float32" in every_case()[name].dtypes)


@pytest.mark.parametrize("name", list(FAULTS)[::9])
def test_what_is_not_computed_is_the_same(name: str) -> None:
    """For every ninth fault: if its steps are found unchanged, its whole reply is the correct one."""
    make = FAULTS[name].make
    for case in known(make.operator):
        found = unchanged(make, every_case()[case], "float32")
        assert found is None or equal(found, computed(make, case)), case


def test_most_calls_are_not_made() -> None:
    """A fault of fully masked rows changes nothing where every row has a key, and is seen where one has none."""
    make = FAULTS["empty-row-nan"].make
    assert unchanged(make, every_case()["plain"], "float32") is not None
    assert unchanged(make, every_case()["empty-row"], "float32") is None


def test_tiles_of_another_size_are_other_steps() -> None:
    """A fault with the tiles of its correct model is compared step by step; with tiles of another size it is called."""
    bases = (FAULTS["output-not-rescaled"].make, TILED[64])
    case = every_case()["plain"]
    assert unchanged(type("Sixty", bases, {"tile": 64}), case, "float32") is not None
    assert unchanged(type("Forty", bases, {"tile": 40}), case, "float32") is None


def test_a_fault_of_the_attention_in_a_layer_is_seen() -> None:
    """A step of an inner model counts as a step of the outer one."""

    class Louder(Attention):
        """Attention with another scale."""

        def default_scale(self, x: Inputs) -> float:
            """Twice the right one."""
            return 2 * super().default_scale(x)

    class Within(Layer):
        """A layer with that attention."""

        attention = Louder

    assert unchanged(Within, every_case()["mha-plain"], "float32") is None
    assert unchanged(Layer, every_case()["mha-plain"], "float32") is not None


class Writes(Attention):
    """Returns the right scores and writes to q."""

    def scores(self, x: Inputs, q: Array, k: Array) -> Array:
        """(B, Hq, Sq, Sk)."""
        found = super().scores(x, q, k)
        x.q[...] = 0
        return found


class Keeps(Attention):
    """Returns the right scores and keeps state for the next call."""

    def scores(self, x: Inputs, q: Array, k: Array) -> Array:
        """(B, Hq, Sq, Sk)."""
        self.before = q
        return super().scores(x, q, k)


class Reorders(Attention):
    """Returns the right numbers in another memory order."""

    def scores(self, x: Inputs, q: Array, k: Array) -> Array:
        """(B, Hq, Sq, Sk)."""
        return np.asfortranarray(super().scores(x, q, k))


class Whole(Attention):
    """Replaces the call itself."""

    def __call__(self, q: Array, k: Array, v: Array, **keywords: object) -> Array:
        """Zeros."""
        return np.zeros_like(q)


@pytest.mark.parametrize("make", [Writes, Keeps, Reorders, Whole])
def test_what_does_more_than_return_is_computed(make: type[Model]) -> None:
    """A model that writes to its arguments, keeps state or changes no step is never called unchanged."""
    assert unchanged(make, every_case()["plain"], "float32") is None


@pytest.mark.parametrize("name", [f.name for f in FAULTS.values() if f.make.__module__ in steps._EFFECTS])
def test_faults_by_their_effects_are_always_computed(name: str) -> None:
    """Faults about effects on later calls are always computed, as no returned value shows them."""
    assert unchanged(FAULTS[name].make, every_case()["plain"], "float32") is None


def test_every_fault_is_a_form_of_a_correct_model() -> None:
    """Every fault is derived from the correct model of its own operator."""
    assert all(correct(fault.make).operator == fault.operator for fault in FAULTS.values())


@pytest.mark.slow(2)
@pytest.mark.parametrize("name", list(FAULTS)[::40])
def test_a_second_fault_that_adds_nothing_gives_the_reply_of_the_first(name: str) -> None:
    """If every step of a second fault agrees, the reply of both equals that of the first."""
    fault = FAULTS[name]
    for second in [each for each in FAULTS.values() if each.operator == fault.operator][::7]:
        made = combined((fault, second))
        for case in known(fault.operator) if made is not None else ():
            if adds_nothing(made, fault.make, every_case()[case], "float32"):  # type: ignore[arg-type]
                assert equal(computed(made, case), computed(fault.make, case)), (second.name, case)  # type: ignore[arg-type]


def test_a_second_fault_adds_something_where_the_first_makes_it_show() -> None:
    """An inverted mask that allows all keys empties every row, which makes NaN in fully masked rows show."""
    inverted, nan = FAULTS["mask-inverted"], FAULTS["empty-row-nan"]
    made = combined((inverted, nan))
    assert made is not None
    shows = every_case()["mask-all-true"]
    assert unchanged(nan.make, shows, "float32") is not None
    assert not adds_nothing(made, inverted.make, shows, "float32")
    assert not equal(computed(made, shows.name), computed(inverted.make, shows.name))
    assert adds_nothing(made, inverted.make, every_case()["plain"], "float32")
