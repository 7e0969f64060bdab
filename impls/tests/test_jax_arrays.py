"""JAX arrays in the worker: dtypes are kept, foreign arrays refused, and importing the table imports no framework."""

from __future__ import annotations

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from attention_conformance.impls.calls import same_bits
from attention_conformance.impls.contract import ImplementationError

pytest.importorskip("jax")

DTYPES = ("float64", "float32", "float16", ml_dtypes.bfloat16, "int64", "bool")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_array_comes_back_as_it_went(dtype: str) -> None:
    """Bits and dtype survive, also in 64 bits and from any strides."""
    from attention_conformance.impls.jax import arrays

    array = np.arange(12).reshape(3, 4).astype(dtype).T[::2]
    assert same_bits(arrays.get(arrays.put(array, "cpu")), np.ascontiguousarray(array))


def test_foreign_arrays_are_refused() -> None:
    """A NumPy array is not mistaken for a JAX result."""
    from attention_conformance.impls.jax import arrays

    with pytest.raises(TypeError, match=r"numpy\.ndarray"):
        arrays.get(np.zeros(2))


def test_the_cpu_is_found_first() -> None:
    """Devices are named as in the contract, and the versions are reported."""
    from attention_conformance.impls.jax import arrays

    assert arrays.devices()[0] == "cpu"
    assert set(arrays.versions()) == {"jax", "jaxlib", "ml_dtypes"}


def test_platforms_that_are_left_out_are_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX_PLATFORMS=cuda leaves out the CPU; if neither a CPU nor a GPU is left, the error says so."""
    import jax

    from attention_conformance.impls.jax import arrays

    left: list[str] = ["cuda"]

    def devices(name: str) -> list[object]:
        if name not in left:
            raise RuntimeError(f"Unknown backend {name}")
        return [object()]

    monkeypatch.setattr(jax, "devices", devices)
    assert arrays.devices() == ("cuda",)
    left.clear()
    with pytest.raises(ImplementationError, match="JAX finds neither a CPU nor a GPU; its platforms are"):
        arrays.devices()


def test_the_table_does_not_import_jax() -> None:
    """Reading the list of implementations imports no framework."""
    code = "import sys, attention_conformance.impls.jax; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
