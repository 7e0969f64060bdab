"""Checks of the reference that the 50-digit evaluation cannot make: NaN, infinities, refusals, and single rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attention_conformance.conformance.spec import sdpa as reference
from attention_conformance.conformance.tests.first_order import agree, limits

Array = np.ndarray

#: Keys 1 and 3 are masked for row 0 only; row 1 sees all four.
MASK = np.array([[True, False, True, False], [True, True, True, True]])
MASKED, ALLOWED = 1, 2


def _inputs(dtype: str = "float64") -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(7)
    shapes = ((2, 4, 2, 3), (2, 2, 4, 3), (2, 2, 4, 5))
    q, k, v = (rng.normal(size=shape).astype(dtype) for shape in shapes)
    return q, k, v


def _output(q: Array, k: Array, v: Array, **options: Any) -> Array:
    return reference.sdpa(q, k, v, mask=MASK, **options).output


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["k", "v", "bias"])
def test_masked_poison_stays_out(where: str, poison: float) -> None:
    """(SDPA-22) NaN or infinity in k, v or bias at a masked key does not reach the row that masks it."""
    q, k, v = _inputs()
    bias = np.zeros((2, 4, 2, 4))
    clean = _output(q, k, v, bias=bias)
    {"k": k, "v": v, "bias": bias[..., :1, :].swapaxes(2, 3)}[where][:, :, MASKED] = poison
    assert np.array_equal(_output(q, k, v, bias=bias)[:, :, 0], clean[:, :, 0])


def test_masked_values_do_not_matter() -> None:
    """(SDPA-21) Other finite values of k and v at a masked key change nothing in the row that masks it."""
    q, k, v = _inputs()
    clean = _output(q, k, v)
    k[:, :, MASKED], v[:, :, MASKED] = 1e6, -1e6
    changed = _output(q, k, v)
    assert np.array_equal(changed[:, :, 0], clean[:, :, 0])
    assert not np.allclose(changed[:, :, 1], clean[:, :, 1])


def test_nan_in_a_query_reaches_its_row() -> None:
    """(SDPA-23) NaN in a query row makes every output element of that row NaN, and no other."""
    q, k, v = _inputs()
    q[1, 2, 0, 1] = np.nan
    nan = np.isnan(_output(q, k, v))
    assert nan[1, 2, 0].all()
    assert nan.sum() == v.shape[3]


def test_nan_in_an_allowed_key_reaches_the_rows_that_see_it() -> None:
    """(SDPA-23) NaN in a key reaches every output element of the rows, in all heads of its group, that allow it."""
    q, k, v = _inputs()
    k[0, 1, MASKED, 0] = np.nan
    nan = np.isnan(_output(q, k, v))
    assert nan[0, 2:, 1].all()
    assert nan.sum() == 2 * v.shape[3]


def test_nan_in_a_value_reaches_its_column() -> None:
    """(SDPA-23) NaN in v[j, d] reaches output element d, even where the weight of key j underflows to 0."""
    q, k, v = _inputs()
    q[...], k[...] = 0, 0
    q[..., 0], k[:, :, ALLOWED, 0] = 1, -5000
    v[0, 0, ALLOWED, 3] = np.nan
    expected = reference.sdpa(q, k, v, mask=MASK, scale=1.0)
    assert np.all(expected.weights[:, :, :, ALLOWED] == 0)
    nan = np.isnan(expected.output)
    assert nan[0, :2, :, 3].all()
    assert nan.sum() == 2 * 2


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_smallest_bias_is_not_a_mask(dtype: str) -> None:
    """(SDPA-24) A row whose biases all equal the smallest number of the dtype is not empty."""
    q, k, v = _inputs(dtype)
    bias = np.full((2, 4), np.finfo(dtype).min, dtype)
    expected = reference.sdpa(q, k, v, bias=bias)
    assert expected.allowed.all()
    assert expected.weights.sum(axis=3) == pytest.approx(1)
    assert np.isfinite(expected.lse).all()


def test_inputs_are_not_modified() -> None:
    """(SDPA-28) The reference does not modify its inputs."""
    q, k, v = _inputs()
    bias = np.where(MASK, 0.5, -np.inf)
    before = [array.copy() for array in (q, k, v, bias)]
    _output(q, k, v, bias=bias, softcap=2.0, is_causal=True)
    assert all(np.array_equal(a, b) for a, b in zip(before, (q, k, v, bias), strict=True))


@pytest.mark.parametrize(
    ("clause", "shapes"),
    [
        ("SDPA-31", ((2, 4, 2, 3), (2, 2, 4, 3), (2, 2, 5, 5))),
        ("SDPA-31", ((2, 4, 2, 3), (1, 2, 4, 3), (1, 2, 4, 5))),
        ("SDPA-32", ((2, 4, 2, 3), (2, 2, 4, 2), (2, 2, 4, 5))),
        ("SDPA-33", ((2, 4, 2, 3), (2, 3, 4, 3), (2, 3, 4, 5))),
        ("SDPA-33", ((2, 4, 2, 3), (2, 2, 4, 3), (2, 4, 4, 5))),
        ("SDPA-33", ((2, 2, 2, 3), (2, 4, 4, 3), (2, 4, 4, 5))),
        ("SDPA-34", ((2, 2, 3), (2, 2, 4, 3), (2, 2, 4, 5))),
    ],
)
def test_shapes_that_do_not_agree_are_refused(clause: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    """(SDPA-31 to SDPA-34) Shapes that do not fit together raise an exception that names the clause."""
    with pytest.raises(reference.InvalidInput) as raised:
        reference.sdpa(*(np.zeros(shape) for shape in shapes))
    assert raised.value.clause == clause


def test_dtypes_that_differ_are_refused() -> None:
    """(SDPA-35) q, k and v of different dtypes raise an exception that names the clause."""
    q, k, v = _inputs()
    with pytest.raises(reference.InvalidInput) as raised:
        reference.sdpa(q, k, v.astype(np.float32))
    assert raised.value.clause == "SDPA-35"


@pytest.mark.parametrize("shape", [(3,), (3, 4), (2, 2, 4), (4, 4, 2, 4), (1, 2, 4, 2, 4)])
@pytest.mark.parametrize("name", ["mask", "bias"])
def test_mask_that_does_not_fit_is_refused(name: str, shape: tuple[int, ...]) -> None:
    """(SDPA-36) A mask or bias that cannot be broadcast raises an exception that names the clause."""
    array = np.ones(shape, bool) if name == "mask" else np.zeros(shape)
    with pytest.raises(reference.InvalidInput) as raised:
        reference.sdpa(*_inputs(), **{name: array})  # type: ignore[arg-type]
    assert raised.value.clause == "SDPA-36"


@pytest.mark.parametrize("rows", [[0], [3], [4, 1], []])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True, "causal_offset": np.array([1, -2])},
        {"window": (1, 0), "mask": np.array([[True], [True], [False], [True], [True]])},
        {"mask": np.array([True, False, True, True])},
        {"bias": np.arange(20.0).reshape(5, 4), "kv_lengths": np.array([4, 2])},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_single_rows_are_those_of_the_whole(rows: list[int], options: dict[str, Any]) -> None:
    """With ``rows`` only those query rows are computed, and they equal the rows of the full result."""
    rng = np.random.default_rng(3)
    q, k, v = (rng.normal(size=shape) for shape in ((2, 2, 5, 3), (2, 1, 4, 3), (2, 1, 4, 2)))
    whole = reference.sdpa(q, k, v, **options)
    part = reference.sdpa(q, k, v, rows=np.array(rows, np.int64), **options)
    limit = limits(whole, 2.0**-53, **options)
    for name in ("output", "weights", "lse"):
        assert agree(getattr(part, name), getattr(whole, name)[:, :, rows], limit[name][:, :, rows])
    assert np.array_equal(part.allowed, whole.allowed[:, :, rows])
