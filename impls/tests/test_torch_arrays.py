"""Torch's Backend: arrays come back with their strides, and only tensors are accepted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attention_conformance.impls import memory_layouts
from attention_conformance.impls.process.state import Watch

pytest.importorskip("torch")

import torch
from torch.overrides import TorchFunctionMode

from attention_conformance.impls.torch import arrays

DTYPES = (np.float64, np.float32, np.float16, ml_dtypes.bfloat16, np.int64, np.bool_)


def _array(dtype: type) -> np.ndarray:
    """An array (2, 3, 4, 5), with the last axis constant so that ``expanded`` has something to expand."""
    numbers = np.arange(24).reshape(2, 3, 4, 1) % 7
    return np.broadcast_to(numbers, (2, 3, 4, 5)).astype(dtype)


@pytest.mark.parametrize("layout", sorted(memory_layouts.LAYOUTS))
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_put_keeps_strides(dtype: type, layout: str) -> None:
    """A tensor has the strides of its array, stride 0 and inner strides included, and the same elements."""
    array = memory_layouts.lay_out(_array(dtype), layout)
    tensor = arrays.put(array, "cpu")
    assert tuple(s * array.itemsize for s in tensor.stride()) == array.strides
    back = arrays.get(tensor)
    assert back.dtype == array.dtype
    assert np.array_equal(back, array)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_empty_and_scalar_arrays(dtype: type) -> None:
    """An array without elements, and one without axes, keep their shape and dtype."""
    for shape in ((2, 0, 5), ()):
        back = arrays.get(arrays.put(np.zeros(shape, dtype), "cpu"))
        assert back.shape == shape
        assert back.dtype == np.dtype(dtype)


def test_changes_are_seen() -> None:
    """A tensor that is modified in place shows the change when it is read again (SDPA-28 relies on it)."""
    tensor = arrays.put(memory_layouts.lay_out(np.zeros((2, 3), np.float32), "transposed"), "cpu")
    tensor[1, 2] = 5
    assert arrays.get(tensor)[1, 2] == 5


@pytest.mark.parametrize("value", [np.zeros(3), [1.0], 1.0, None], ids=["numpy", "list", "float", "none"])
def test_get_refuses_what_is_no_tensor(value: object) -> None:
    """Only tensors are results; a NumPy array, a list or a number is refused with its type."""
    with pytest.raises(TypeError, match="expected a torch tensor, got"):
        arrays.get(value)


def test_nothing_records_a_gradient() -> None:
    """Inputs do not require a gradient, so no implementation keeps intermediates for one."""
    assert not arrays.put(np.ones((2, 2), np.float32), "cpu").requires_grad


class _Mode(TorchFunctionMode):
    """A mode that changes nothing."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


def _autocast() -> None:
    torch.autocast("cpu", dtype=torch.bfloat16).__enter__()


@pytest.mark.parametrize(
    ("leave", "name"), [(_autocast, "autocast of torch"), (lambda: _Mode().__enter__(), "modes of torch")]
)
def test_what_a_call_enters_and_does_not_leave_is_told_and_left(leave: Callable[[], Any], name: str) -> None:
    """The next call does not run in the mode."""
    before = [each.get() for each in arrays.settings()]
    with Watch(arrays.settings()) as watch:
        leave()
    assert [each.partition(":")[0] for each in watch.changed] == [name]
    assert (watch.stuck, [each.get() for each in arrays.settings()]) == ((), before)
