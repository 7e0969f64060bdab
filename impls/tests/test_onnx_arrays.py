"""NumPy arrays become OrtValues and come back unchanged."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("onnxruntime")

from attention_conformance.impls.onnx import arrays
from attention_conformance.impls.onnx.sessions import options
from attention_conformance.impls.process import threads

DTYPES = (np.float64, np.float32, np.float16, ml_dtypes.bfloat16, np.int64, np.bool_)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 3), (4,)])
def test_array_comes_back_as_it_was(dtype: type, shape: tuple[int, ...]) -> None:
    """dtype, shape and elements survive, bfloat16, rank 0 and empty arrays included."""
    array: np.ndarray = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    back = arrays.get(arrays.put(array.copy(), "cpu"))
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()


def test_array_with_strides_comes_back_as_it_was() -> None:
    """ONNX tensors have no strides; the elements are in order nevertheless."""
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1)
    assert np.array_equal(arrays.get(arrays.put(array, "cpu")), array)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_modified_value_is_seen(dtype: type) -> None:
    """A change of the OrtValue's memory shows in a later get."""
    value = arrays.put(np.zeros((2, 3), dtype), "cpu")
    value.update_inplace(arrays.put(np.ones((2, 3), dtype), "cpu"))
    assert np.array_equal(arrays.get(value).astype(float), np.ones((2, 3)))


def test_result_is_a_copy() -> None:
    """A result of get does not change with the OrtValue."""
    value = arrays.put(np.zeros(3, np.float32), "cpu")
    before = arrays.get(value)
    value.update_inplace(np.ones(3, np.float32))
    assert np.array_equal(before, np.zeros(3))


def test_other_values_are_not_results() -> None:
    """A NumPy array is not mistaken for a result."""
    with pytest.raises(TypeError, match="expected an OrtValue"):
        arrays.get(np.zeros(3))


def test_versions_name_the_runtime() -> None:
    """The versions include that of ONNX Runtime."""
    assert "onnxruntime" in arrays.versions()
    assert arrays.devices()[0] == "cpu"


@pytest.mark.parametrize(("wanted", "cores", "count"), [("", 64, 4), ("", 2, 2), ("7", 64, 7)])
def test_a_session_has_a_few_threads_unless_their_number_is_said(
    wanted: str, cores: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many sessions are open at the same time; the benchmark sets how many threads each one has."""
    monkeypatch.setenv(threads.VARIABLE, wanted)
    monkeypatch.setattr(threads, "usable_cores", lambda: cores)
    assert options().intra_op_num_threads == count
