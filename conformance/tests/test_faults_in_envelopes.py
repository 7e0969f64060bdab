"""Faults within an envelope: a kernel that takes only some sizes is judged as hard as one that takes all."""

from __future__ import annotations

import pytest

from attention_conformance.conformance.cases.base import HALVES
from attention_conformance.conformance.faults.kill_matrix import LEAST, judge_in_envelope
from attention_conformance.conformance.faults.registry import FAULTS
from attention_conformance.conformance.tests.test_cases_fit import ENVELOPES
from attention_conformance.impls.process.pool import Pool

pytestmark = pytest.mark.slow(90)

#: What does not show in half precision at widths of 64, 96, 128 and 256, Dv = D, by what it is about.
ABOUT_WIDTHS = {
    "output-width-of-keys",
    "product-overflows-odd-width",
    "scale-of-padded-width",
    "scale-of-value-width",
    "scale-of-width-padded-to8",
    "value-columns-lost",
    "value-width-refused",
}
ABOUT_FLOAT32 = {
    "exp-approximate",
    "float64-in-float32",
    "order-random",
    "scale-in-float32",
    "tf32",
    "values-in-half",
    "weights-in-bfloat16",
}
#: What one case alone catches there.
ONCE = {"masked-tile-maximum-zero", "past-dtype-taken", "present-half", "sink-counts-per-tile"}


def test_a_flash_kernel_is_judged_as_hard_as_what_takes_every_call() -> None:
    """Every fault that can show inside its envelope is caught, nearly all of them by two cases."""
    envelope, dtypes = ENVELOPES["half-precision flash"]
    assert dtypes == HALVES
    names = [name for name, fault in FAULTS.items() if fault.operator == "sdpa"]
    kills = judge_in_envelope(Pool(in_process=True), envelope, dtypes, names)
    assert {kill.fault for kill in kills if not kill.caught} <= ABOUT_WIDTHS | ABOUT_FLOAT32
    assert {kill.fault for kill in kills if 0 < len(kill.caught) < LEAST} <= ONCE


def test_what_is_no_fault_inside_an_envelope_is_caught_by_no_case() -> None:
    """A mistake about widths shows nowhere at one width, so that nothing is caught for another reason."""
    envelope, dtypes = ENVELOPES["width 128"]
    (kill,) = judge_in_envelope(Pool(in_process=True), envelope, dtypes, ["scale-of-padded-width"], enough=1)
    assert not kill.caught
