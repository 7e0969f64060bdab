"""The layers written out in JAX, under jit with their plain keywords static, compared with float64 head by head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from attention_conformance.impls.tests.layer_problems import (
    FOUR_WORDS,
    NORMS,
    PROBLEMS,
    assert_four_words,
    assert_right,
    copied,
    four_words,
    problem,
)

jax = pytest.importorskip("jax")

from attention_conformance.impls.jax import layer  # noqa: E402
from attention_conformance.impls.jax.arrays import wide_types  # noqa: E402

pytestmark = pytest.mark.slow

#: The dtype of the computation, by dtype.
INNER = {"float64": "float64", "float32": "float32", "float16": "float32", "bfloat16": "float32"}
#: Each form is compiled once, which takes most of a second, so only some are compiled in every dtype.
FORMS = [(name, "float32") for name in PROBLEMS]
FORMS += [(name, dtype) for name in ("cross-weights", "bias-causal") for dtype in INNER if dtype != "float32"]
NORM_FORMS = [(name, "float32") for name in NORMS]
NORM_FORMS += [(name, dtype) for name in ("post-norm", "pre-norm") for dtype in INNER if dtype != "float32"]


def run(function: Any, arrays: Mapping[str, np.ndarray], options: Mapping[str, Any], static: bool = True) -> Any:
    """Results as NumPy arrays of one program, with the options static, or with the numbers among them traced."""
    names = [name for name, value in options.items() if static or not isinstance(value, float)]
    with wide_types(arrays["x_q"].dtype == "float64"):
        program = jax.jit(function, static_argnames=names)
        found = program(**{name: jax.numpy.asarray(array) for name, array in arrays.items()}, **options)
        return tuple(map(np.asarray, found)) if isinstance(found, tuple) else np.asarray(found)


@pytest.mark.parametrize(("name", "dtype"), FORMS)
def test_mha(name: str, dtype: str) -> None:
    """The layer is right in every form, computed in float32 or wider, and leaves its inputs unchanged."""
    arrays, options = problem(name, dtype)
    before = copied(arrays)
    assert_right(run(layer.mha, arrays, options), arrays, options, INNER[dtype])
    assert all((arrays[each] == before[each]).all() for each in before)


@pytest.mark.parametrize(("name", "dtype"), NORM_FORMS)
def test_sublayer(name: str, dtype: str) -> None:
    """The sub-layer is right in both forms."""
    arrays, options = problem(name, dtype)
    assert_right(run(layer.sublayer, arrays, options), arrays, options, INNER[dtype])


@pytest.mark.parametrize(("function", "name"), [(layer.mha, "scale"), (layer.sublayer, "pre-norm")])
def test_numbers_may_be_traced(function: Any, name: str) -> None:
    """The scale and epsilon may be arguments of the program instead of constants of it."""
    arrays, options = problem(name, "float32")
    assert_right(run(function, arrays, options, static=False), arrays, options)


@pytest.mark.parametrize("name", FOUR_WORDS)
def test_four_words(name: str) -> None:
    """Source 002's example, which has no batch axis, gives the documented numbers."""
    options, first = FOUR_WORDS[name]
    arrays = {key: array.astype("float32") for key, array in four_words().items()}
    mask = {key: options[key] for key in options if key == "mask"}
    assert_four_words(run(layer.mha, arrays | mask, {"heads": options["heads"]}), first)


def test_row_without_key() -> None:
    """A batch whose keys are all padding gives the bias of the output projection, and weights of zero."""
    arrays, options = problem("lengths-weights", "float32")
    output, weights = run(layer.mha, arrays | {"kv_lengths": np.array([5, 0])}, options)
    assert (output[1] == arrays["b_o"]).all()
    assert not weights[1].any()


@pytest.mark.parametrize("heads", [0, 3])
def test_heads_that_do_not_divide_are_refused(heads: int) -> None:
    """Heads that do not divide the width raise ValueError while the program is traced."""
    arrays, options = problem("plain", "float32")
    with pytest.raises(ValueError, match="divide"):
        run(layer.mha, arrays, options | {"heads": heads})


def test_another_dtype_is_refused() -> None:
    """A bias of another dtype raises TypeError instead of being widened silently."""
    arrays, options = problem("bias", "float32")
    with pytest.raises(TypeError, match="bias"):
        run(layer.mha, arrays | {"bias": arrays["bias"].astype("float16")}, options)


@pytest.mark.parametrize("dtype", INNER)
def test_scale_by_model_width_is_rejected(dtype: str) -> None:
    """The comparison used here detects 1/√(model width) instead of 1/√(head width), in every dtype."""
    arrays, options = problem("plain", dtype)
    with pytest.raises(AssertionError, match="times the limit"):
        assert_right(run(layer.mha, arrays, options | {"scale": 8**-0.5}), arrays, options, INNER[dtype])


def test_scrambled_heads_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison used here detects heads that are combined without moving the sequence axis first."""
    monkeypatch.setattr(layer, "_combine", lambda x: x.reshape(x.shape[0], x.shape[2], -1))
    arrays, options = problem("sequence-first-lengths", "float32")
    with pytest.raises(AssertionError, match="times the limit"):
        assert_right(run(lambda **given: layer.mha(**given), arrays, options), arrays, options)  # nothing traced before
