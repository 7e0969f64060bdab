"""The reference agrees with PyTorch's attention on the samples that PyTorch uses in its own tests."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.testing._internal.common_methods_invocations import (  # noqa: E402
    sample_inputs_scaled_dot_product_attention as sample_inputs,
)

from attention_conformance.conformance.spec import sdpa as reference  # noqa: E402
from attention_conformance.conformance.tests.first_order import agree, limits  # noqa: E402

pytestmark = pytest.mark.slow

UNIT = 2.0**-53


def _samples() -> list[Any]:
    """PyTorch's samples in float64, without those that use dropout."""
    torch.manual_seed(0)
    found = sample_inputs(None, "cpu", torch.float64, False)
    return [sample for sample in found if not sample.kwargs.get("dropout_p")]


def _four_axes(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """PyTorch's arrays with four axes: (B, S, D) gets one head; batch and head axes are broadcast."""
    with_head = array[:, None] if len(shape) == 3 else array
    return np.broadcast_to(with_head, (*((*shape[:1], 1) if len(shape) == 3 else shape[:2]), *array.shape[-2:]))


@pytest.mark.parametrize("chosen", ["math", "default"])
@pytest.mark.parametrize("index", range(len(_samples())))
def test_reference_agrees_with_pytorch(index: int, chosen: str) -> None:
    """In float64 the plain kernel and the one PyTorch chooses both agree with the reference, to their roundings."""
    sample = _samples()[index]
    tensors = (sample.input, *sample.args)
    options: dict[str, Any] = {"is_causal": sample.kwargs["is_causal"]}
    if "attn_mask" in sample.kwargs:
        options["bias"] = sample.kwargs["attn_mask"].numpy()
    with sdpa_kernel([SDPBackend.MATH]) if chosen == "math" else contextlib.nullcontext():
        theirs = torch.nn.functional.scaled_dot_product_attention(*tensors, **sample.kwargs).numpy()
    q, k, v = (_four_axes(tensor.numpy(), tuple(sample.args[0].shape)) for tensor in tensors)
    expected = reference.sdpa(q, k, v, **options)
    # both results are rounded
    limit = 2 * limits(expected, UNIT, **options)["output"].reshape(theirs.shape)
    assert agree(expected.output.reshape(theirs.shape), theirs, limit)


def test_there_are_samples() -> None:
    """The samples cover three and four axes, causal and not, and a mask, so that an empty list does not pass."""
    samples = _samples()
    assert {sample.input.ndim for sample in samples} == {3, 4}
    assert {sample.kwargs["is_causal"] for sample in samples} == {True, False}
    assert any("attn_mask" in sample.kwargs for sample in samples)
