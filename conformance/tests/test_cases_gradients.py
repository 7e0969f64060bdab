"""Cases of gradients can fail: their bounds do not hide their gradients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attention_conformance.conformance.bounds.sdpa import profiles
from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.cases.gradient import GradientCase
from attention_conformance.conformance.cases.mha_gradient import MhaGradientCase
from attention_conformance.conformance.tests.telling import check_telling
from attention_conformance.impls.contract import Profile

CASES = [
    case for case in every_case().values() if isinstance(case, GradientCase | MhaGradientCase) and not case.invalid
]

#: Gradients of a layer that are zero in some cases, as the case's own sentence says; that of b_k is zero in all.
ZERO = {
    "mha-grad-one-row": {"grad_w_q", "grad_w_k", "grad_b_q"},
    "mha-grad-scale-zero": {"grad_w_q", "grad_w_k", "grad_b_q"},
    "mha-grad-many-rows": {"grad_w_q", "grad_w_k", "grad_b_q"},
    "mha-grad-many-samples": {"grad_w_q", "grad_w_k", "grad_b_q"},
}


def check(case: GradientCase | MhaGradientCase) -> None:
    """Check that every dtype and profile of a case can fail.  Raises ValueError if zeros would pass."""
    for dtype in case.dtypes:
        for profile in profiles(dtype):
            check_telling(case.expected(dtype), vars(case.bound(dtype, profile)))


@pytest.mark.slow(2)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_zeros_would_not_pass(case: GradientCase | MhaGradientCase) -> None:
    """In each dtype and profile some gradient exceeds its bound or must be exactly zero."""
    check(case)


@pytest.mark.parametrize("case", [c for c in CASES if isinstance(c, MhaGradientCase)], ids=lambda case: case.name)
def test_every_gradient_of_a_layer_could_fail(case: MhaGradientCase) -> None:
    """In the first dtype of a case each gradient exceeds its bound, except those that are zero by the spec."""
    expected, dtype = case.expected(case.dtypes[0]), case.dtypes[0]
    zero = {"grad_b_k", *ZERO.get(case.name, ())}
    names = {name for name, gradient in expected.gradients.items() if gradient.size and name not in zero}
    check_telling(expected, vars(case.bound(dtype, Profile.WIDE)), names)


def test_a_case_that_tells_nothing_is_refused() -> None:
    """A case whose grad_output is far below the roundings of the rest is refused, as zeros would pass."""
    plain = every_case()["grad-plain"]
    assert isinstance(plain, GradientCase)
    tiny = np.finfo(np.float32).tiny / 8
    hidden = replace(
        plain,
        name="hidden",
        dtypes=("float32",),
        edit=lambda x: replace(x, grad_output=np.full_like(x.grad_output, tiny), v=x.v * np.float32(1e-3)),
    )
    with pytest.raises(ValueError, match="zeros would pass as gradients"):
        check(hidden)
