"""Cases at the sizes of kernels: names, reach, and data that distinguishes one key, row and head from the next."""

from __future__ import annotations

import numpy as np
import pytest

from attention_conformance.conformance.cases import Case, every_case, kernels, serving, serving_cases
from attention_conformance.conformance.cases.design import Row
from attention_conformance.conformance.cases.kernel_paths import kernel_paths
from attention_conformance.conformance.spec.clauses import clauses
from attention_conformance.conformance.spec.sdpa import sdpa

#: Options that do not hide the last key.
SEEN = ("plain", "mask", "bias", "softcap", "sinks", "offset")


@pytest.fixture(scope="module")
def tier() -> dict[str, Case]:
    """Every case of the tier by name."""
    return {case.name: case for case in kernels.cases()}


def test_no_name_stands_twice(tier: dict[str, Case]) -> None:
    """No two cases of the tier have the same name, and none has the name of another case."""
    assert len(tier) == sum(1 for _ in kernels.cases())
    assert not tier.keys() & every_case().keys()


def test_a_name_tells_the_case() -> None:
    """The name of a case says all of its parts, so that it is the same in any design."""
    row = Row(1, 513, (192, 128), 8, 2, 3, "offset-window", "bfloat16", True)
    case = kernels.of_row("decode", "Few queries", row)
    assert case.name == "kernel-decode-offset-window-3x16x2-q1-k513-d192v128-lse-bfloat16"
    assert (case.shape.hq, case.shape.hkv, case.dtypes) == (16, 2, ("bfloat16",))
    assert set(case.options) == {"is_causal", "causal_offset", "window", "return_lse"}


def test_a_case_is_made_from_its_name(tier: dict[str, Case]) -> None:
    """A case is made from its name without the design, which takes most of a second."""
    assert [name for name, case in tier.items() if kernels.kernel_case(name) != case] == []
    with pytest.raises(KeyError):
        kernels.kernel_case("kernel-edges-nothing-1x1x1-q1-k1-d64-float32")


def test_clauses_exist(tier: dict[str, Case]) -> None:
    """Cases name only clauses that exist."""
    assert {clause for case in tier.values() for clause in case.clauses} <= clauses().keys()


def test_every_path_of_a_kernel_is_taken(tier: dict[str, Case]) -> None:
    """Every path of a kernel is taken by at least two cases."""
    calls = [kernels.call_of(case) for case in tier.values()]
    few = {path.id for path in kernel_paths().values() if sum(path.taken(call) for call in calls) < 2}
    assert few == set()


def test_the_tier_has_long_keys_and_many_heads(tier: dict[str, Case]) -> None:
    """The tier has more than 4096 and 2^16 keys, more than 2^16 rows, and more than 65,535 batches times heads."""
    assert {case.shape.sk for case in tier.values()} >= {4097, 65545}
    assert max(case.shape.sq for case in tier.values()) > 1 << 16
    assert {case.shape.b * case.shape.hq for case in tier.values()} >= {1, 64, 65545}


def test_a_design_within_an_envelope_stays_inside() -> None:
    """A design for half precision, one width and one query has only such cases."""
    found = list(kernels.cases_within(sq=(1,), width=((64, 64),), dtype=("float16",)))
    assert {(case.shape.sq, case.shape.d, case.dtypes) for case in found} == {(1, 64, ("float16",))}
    assert {case.options.get("softcap") for case in found} == {None, 6.0}


@pytest.mark.parametrize("dtype", kernels.DTYPES)
@pytest.mark.parametrize("option", SEEN)
def test_the_last_key_decides_an_element(option: str, dtype: str) -> None:
    """Without the last key some element moves by more than half precision could hide, even with a single row."""
    for sq, sk in ((1, 129), (65, 65)):
        case = kernels.of_row("test", "A call", Row(sq, sk, (64, 64), 2, 1, 1, option, dtype, False))
        inputs, options = case.inputs(dtype), dict(case.inputs(dtype).keywords)
        whole = case.expected(dtype).output
        less = sdpa(inputs.q, inputs.k, inputs.v, **options | {"kv_lengths": np.array([sk - 1])}).output
        assert np.abs(whole - less).max() > 0.1


@pytest.mark.parametrize("dtype", kernels.DTYPES)
@pytest.mark.parametrize("edge", [64, 128, 256, 512])
def test_the_first_key_of_a_tile_decides_an_element(edge: int, dtype: str) -> None:
    """Without the first key of a tile some element moves, in a call of some rows."""
    case = kernels.of_row("test", "A call", Row(65, edge + 1, (64, 64), 1, 1, 1, "plain", dtype, False))
    inputs = case.inputs(dtype)
    less = sdpa(inputs.q, inputs.k[:, :, :edge], inputs.v[:, :, :edge]).output
    assert np.abs(case.expected(dtype).output - less).max() > 0.1


@pytest.mark.parametrize("dtype", kernels.DTYPES)
def test_rows_heads_and_columns_differ(dtype: str) -> None:
    """No two rows, heads or columns of an output are equal, so that none can be taken for another."""
    output = (
        kernels.of_row("test", "A call", Row(16, 65, (32, 32), 3, 2, 2, "plain", dtype, False)).expected(dtype).output
    )
    for axis in range(4):
        lines = np.moveaxis(output, axis, 0).reshape(output.shape[axis], -1)
        distances = np.abs(lines[:, None] - lines[None]).max(axis=2) + 9 * np.eye(len(lines))
        assert distances.min() > 0.1


def test_a_masked_key_beyond_the_diagonal_would_be_seen() -> None:
    """In a causal call some row has a peak one key ahead of its diagonal."""
    case = kernels.of_row("test", "A call", Row(65, 65, (64, 64), 1, 1, 1, "causal", "float16", False))
    inputs = case.inputs("float16")
    ahead = sdpa(inputs.q, inputs.k, inputs.v, is_causal=True, causal_offset=1).output
    assert np.abs(case.expected("float16").output - ahead).max() > 0.5


def test_every_designed_case_that_serves_has_its_name_alone() -> None:
    """A designed serving case made from its name equals the one of the design, and the reference takes its problem."""
    tier = serving_cases()
    assert len(tier) > 300
    assert [name for name, case in tier.items() if serving.serving_case(name) != case] == []
    for case in list(tier.values())[::40]:
        output = getattr(case.expected(case.dtypes[0]), "output", None)
        assert output is None or np.isfinite(output).all()
    with pytest.raises(KeyError):
        serving.serving_case("serving-decode-nothing-1x1x1-q1-k1-d64-float32")


def test_designed_packs_have_every_pair_of_length_and_option() -> None:
    """Designed packs have every pair of a length near a block and an option, which a list of cases would not."""
    rows = serving.designed("packed")
    assert {(row.sk, row.option) for row in rows} >= {(sk, o) for sk in (5, 17, 33, 65) for o in serving.PACKED}
    square = serving.designed("packedsquare")
    assert all(row.sq == row.sk for row in square)
