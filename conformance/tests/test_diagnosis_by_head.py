"""Diagnosis of ALiBi, scales of heads and rotary embedding: mistakes on no list, and faults that look alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attention_conformance.conformance.cases import AnyCase, every_case
from attention_conformance.conformance.diagnosis.match import diagnose
from attention_conformance.conformance.faults import FAULTS
from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs, Model
from attention_conformance.conformance.tests.test_diagnosis_choice import sorted_out


class SlopesAdded(Attention):
    """Far keys gain."""

    def slopes(self, x: Inputs) -> Array:
        """With the other sign."""
        return -super().slopes(x)


class DistanceWithSign(Attention):
    """i − j."""

    def distance(self, x: Inputs) -> Array:
        """Negative behind the row."""
        return self.diagonal(x) - self.keys(x)


class ScaleAfterBias(Attention):
    """The bias is scaled, too."""

    def added(self, x: Inputs, s: Array) -> Array:
        """Scores with their bias, scaled."""
        found = super().added(x, s)
        return found if x.head_scale is None else found * x.head_scale.astype(x.work)[:, None, None]

    def head_scale(self, x: Inputs) -> Array:
        """None where it belongs."""
        return np.ones(x.q.shape[1], x.work)


class QueriesAloneTurned(Attention):
    """Keys of a cache that were never turned."""

    def operands(self, x: Inputs) -> tuple[Array, Array, Array]:
        """Two of them as they came."""
        q, _, _ = super().operands(x)
        return q, *super().operands(replace(x, rotary_cos=None, rotary_sin=None))[1:]


class TurnedBackwards(Attention):
    """The sine's sign."""

    def tables(self, x: Inputs) -> tuple[Array, Array]:
        """Of the negative angles."""
        cos, sin = super().tables(x)
        return cos, -sin


class OtherAngles(Attention):
    """Every angle a tenth more, which nothing on the list gives."""

    def tables(self, x: Inputs) -> tuple[Array, Array]:
        """Of another base."""
        cos, sin = super().tables(x)
        angle = 1.1 * np.arctan2(sin, cos)
        return np.cos(angle), np.sin(angle)


def asked(keyword: str) -> list[AnyCase]:
    """The small valid cases of sdpa that give a keyword, and two that give none."""
    own = [c for c in every_case().values() if c.operator == "sdpa" and not c.invalid and c.size[0] < 2000]
    return [c for c in own if keyword in c.options or c.name in ("plain", "plain-square")]


@pytest.mark.slow(4)
@pytest.mark.parametrize(
    ("make", "keyword", "words"),
    [
        (SlopesAdded, "alibi_slopes", "slopes are added, and not taken off"),
        (DistanceWithSign, "alibi_slopes", "ALiBi by i − j without its size"),
        (ScaleAfterBias, "head_scale", "the scale of each head is applied after the bias"),
        (QueriesAloneTurned, "rotary_cos", "queries are turned, and keys are not"),
        (TurnedBackwards, "rotary_cos", "rows are turned backwards"),
    ],
)
def test_a_mistake_that_is_no_fault_is_named(make: type[Model], keyword: str, words: str) -> None:
    """By a form, in every case that shows it."""
    failed, passed = sorted_out(make, asked(keyword))
    (best,) = diagnose(failed, passed, pairs=False)
    assert words in best.title
    assert best.fits == frozenset(failed)


@pytest.mark.slow(2)
def test_angles_of_another_base_are_none_of_the_forms() -> None:
    """Nothing is said of a rotation that no form gives."""
    failed, passed = sorted_out(OtherAngles, asked("rotary_cos"))
    assert failed
    assert not any("form-rotation" in each.names for each in diagnose(failed, passed, pairs=False))


@pytest.mark.parametrize("name", ["rotary-ignored", "rotary-by-head"])
def test_a_rotation_that_cancels_is_told_from_none(name: str) -> None:
    """Queries and keys of one head turned by its number are as if not turned; grouped heads tell the two apart."""
    failed, passed = sorted_out(FAULTS[name].make, asked("rotary_cos"))
    assert diagnose(failed, passed, pairs=False)[0].names == (name,)
