"""Cases of gradients can fail: their gradients are not hidden by their own bounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from conformance.bounds import profiles
from conformance.cases import every_case
from conformance.cases.gradient import GradientCase
from conformance.gradients.bounds import check_telling

CASES = [case for case in every_case().values() if isinstance(case, GradientCase) and not case.invalid]


def check(case: GradientCase) -> None:
    """Every dtype and profile of a case tells something.  Raises ValueError if zeros would pass."""
    for dtype in case.dtypes:
        for profile in profiles(dtype):
            check_telling(case.expected(dtype), vars(case.bound(dtype, profile)))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_zeros_would_not_pass(case: GradientCase) -> None:
    """In each dtype and profile some gradient exceeds its bound, or has to be exactly zero."""
    check(case)


def test_a_case_that_tells_nothing_is_refused() -> None:
    """Where the gradient of the output is far below the rest's roundings, zeros would pass."""
    plain = next(case for case in CASES if case.name == "grad-plain")
    tiny = np.finfo(np.float32).tiny / 8
    hidden = replace(
        plain,
        name="hidden",
        dtypes=("float32",),
        edit=lambda x: replace(x, grad_output=np.full_like(x.grad_output, tiny), v=x.v * np.float32(1e-3)),
    )
    with pytest.raises(ValueError, match="zeros would pass as gradients"):
        check(hidden)
