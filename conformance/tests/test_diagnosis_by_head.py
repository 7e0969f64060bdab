"""Diagnosis of ALiBi, scales of heads and rotary embedding: unlisted mistakes, and faults that look alike."""

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
    """Slopes are added, so that far keys gain."""

    def slopes(self, x: Inputs) -> Array:
        """Slopes with the opposite sign."""
        return -super().slopes(x)


class DistanceWithSign(Attention):
    """The distance is i − j with its sign."""

    def distance(self, x: Inputs) -> Array:
        """The distance, negative for keys after the row."""
        return self.diagonal(x) - self.keys(x)


class ScaleAfterBias(Attention):
    """The scale of heads is applied after the bias."""

    def added(self, x: Inputs, s: Array) -> Array:
        """Scores with their bias, scaled."""
        found = super().added(x, s)
        return found if x.head_scale is None else found * x.head_scale.astype(x.work)[:, None, None]

    def head_scale(self, x: Inputs) -> Array:
        """No scale of heads before the bias."""
        return np.ones(x.q.shape[1], x.work)


class QueriesAloneTurned(Attention):
    """Queries are rotated and the cached keys are not."""

    def operands(self, x: Inputs) -> tuple[Array, Array, Array]:
        """The operands with keys and values unrotated."""
        q, _, _ = super().operands(x)
        return q, *super().operands(replace(x, rotary_cos=None, rotary_sin=None))[1:]


class TurnedBackwards(Attention):
    """The sine has the wrong sign."""

    def tables(self, x: Inputs) -> tuple[Array, Array]:
        """Tables of the negative angles."""
        cos, sin = super().tables(x)
        return cos, -sin


class OtherAngles(Attention):
    """Every angle is a tenth larger, which nothing on the list gives."""

    def tables(self, x: Inputs) -> tuple[Array, Array]:
        """Tables of the larger angles."""
        cos, sin = super().tables(x)
        angle = 1.1 * np.arctan2(sin, cos)
        return np.cos(angle), np.sin(angle)


def asked(keyword: str) -> list[AnyCase]:
    """The small valid cases of sdpa that give a keyword, and two that give no option."""
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
    """A form names the mistake in every case that shows it."""
    failed, passed = sorted_out(make, asked(keyword))
    (best,) = diagnose(failed, passed, pairs=False)
    assert words in best.title
    assert best.fits == frozenset(failed)


@pytest.mark.slow(2)
def test_angles_of_another_base_are_none_of_the_forms() -> None:
    """A rotation that no form gives is not named."""
    failed, passed = sorted_out(OtherAngles, asked("rotary_cos"))
    assert failed
    assert not any("form-rotation" in each.names for each in diagnose(failed, passed, pairs=False))


@pytest.mark.parametrize("name", ["rotary-ignored", "rotary-by-head"])
def test_a_rotation_that_cancels_is_told_from_none(name: str) -> None:
    """Queries and keys rotated by their head number cancel as if unrotated; grouped heads distinguish the two."""
    failed, passed = sorted_out(FAULTS[name].make, asked("rotary_cos"))
    assert diagnose(failed, passed, pairs=False)[0].names == (name,)
