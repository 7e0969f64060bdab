"""Operations and least bytes of a call, compared with counting them one by one, and the limit that binds."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from attention_conformance import bench
from attention_conformance.bench.records import Roofline
from attention_conformance.bench.roofline.costs import FORMULAS, flops, intensity, least_bytes, measures, pairs
from attention_conformance.bench.workloads import arguments
from attention_conformance.bench.workloads.workload import PACKED, Workload, parse

#: Small forms of every option that decides which pairs are allowed.
NAMES = (
    "prefill-b1h1d1s1",
    "prefill-b2h3d4s5",
    "prefill-b1h2d3s8-causal",
    "prefill-b2h4g2d3v5s9-w3",
    "prefill-b1h2d3s4-w100",
    "prefill-b3h2d3s7-pad",
    "prefill-b3h2d3s7-causal-pad",
    "prefill-b3h2d3s7-w2-pad",
    "cross-b1h2d3s4k9",
    "cross-b2h2d3s9k4-pad",
    "decode-b1h2d3s1k6",
    "decode-b1h2d3s4k6",
    "decode-b1h2d3s4k6-w2",
    "varlen-b3h2d3s7",
    "varlen-b3h4g2d3v5s7-causal",
    "varlen-b3h2d3s9-w2-chat",
    "paged-b3h4g2d3v5s2k9-p4",
    "paged-b3h2d3s4k9-w3-code-mixed",
    "blocks-b2h2d3s42-p4",
)

#: Workloads that have gradients.
DIFFERENTIATED = [name for name in NAMES if name.startswith(("prefill", "cross"))]


def allowed(w: Workload, b: int, i: int, j: int) -> bool:
    """Whether row i of sequence b may attend to key j, as the grammar describes it."""
    rows, keys = w.sequences[b]
    position = (keys - rows if w.kind in PACKED else w.past) + i
    if i >= rows:
        return False
    if w.kind == "blocks":
        return bool(arguments.block_mask(w)[0, -1, i // w.page, j // w.page])
    if w.is_causal and j > position:
        return False
    if w.window is not None and j < position - w.window:
        return False
    return j < keys


def counted(w: Workload) -> int:
    """Allowed pairs of one head, counted one by one."""
    everything = itertools.product(range(w.batch), range(w.length), range(w.keys))
    return sum(allowed(w, b, i, j) for b, i, j in everything)


@pytest.mark.parametrize("name", NAMES)
def test_pairs_equal_the_ones_that_are_allowed(name: str) -> None:
    """Causal order, window, padding and past keys are counted pair by pair."""
    assert pairs(parse(name)) == counted(parse(name))


@pytest.mark.parametrize("name", NAMES)
def test_flops_equal_what_the_two_products_do(name: str) -> None:
    """One multiplication and one addition for each term of q·k and of weight · v."""
    w = parse(name)
    assert flops(w) == counted(w) * w.heads * (2 * w.width + 2 * w.value_width)


@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_gradients_have_five_products(name: str) -> None:
    """q·k, dQ and dK are sums or terms of width D, dP and dV of width Dv."""
    w = parse(f"{name}-grad")
    assert flops(w) == counted(w) * w.heads * (3 * 2 * w.width + 2 * 2 * w.value_width)


def test_gradients_are_two_and_a_half_forward_passes() -> None:
    """The ratio holds where D = Dv."""
    assert 2 * flops(parse("prefill-b1h8d64s64-causal-grad")) == 5 * flops(parse("prefill-b1h8d64s64-causal"))


@pytest.mark.parametrize("kind", ["mha", "sublayer"])
def test_a_layer_has_four_projections_and_its_attention(kind: str) -> None:
    """Each projection multiplies every token by a square matrix of E = H · D."""
    w = parse(f"{kind}-b2h3d4s5-causal-pad")
    attention = flops(parse("prefill-b2h3d4s5-causal-pad"))
    assert flops(w) == 4 * (2 * 2 * 5 * 12 * 12) + attention


@pytest.mark.parametrize("operator", FORMULAS)
def test_formulas_stand_in_the_readme(operator: str) -> None:
    """The README's formulas are those of the records."""
    page = (Path(bench.__file__).parent / "README.md").read_text(encoding="utf-8")
    assert f"| {operator} | `{FORMULAS[operator]}` |" in page


@pytest.mark.parametrize(
    "name",
    ["prefill-b2h4g2d3v5s9-w3", "cross-b2h2d3s9k4-pad-grad", "mha-b2h3d4s5", "mha-b2h3d4s5-grad", "paged-b3h2d3s2k9"],
)
def test_the_formula_is_what_is_counted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The printed formula evaluates to the number of operations."""
    monkeypatch.setattr(
        "attention_conformance.bench.workloads.workload.OPERATORS", dict.fromkeys(("sdpa_grad", "mha_grad"))
    )
    w = parse(name)
    text = FORMULAS[w.operator].replace("·", "*").replace("E²", "E**2")
    sizes = {"B": w.batch, "H": w.heads, "S": w.length, "D": w.width, "Dv": w.value_width, "E": w.heads * w.width}
    assert eval(text, {**sizes, "pairs": pairs(w) / w.batch}) == flops(w)  # noqa: S307  (our own text)


def test_gradients_of_a_layer_have_eleven_projections_and_six_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are three projections each for q, k and v, and two for the output; attention has five products and P·V."""
    monkeypatch.setattr(
        "attention_conformance.bench.workloads.workload.OPERATORS", dict.fromkeys(("sdpa_grad", "mha_grad"))
    )
    w = parse("mha-b2h3d4s5-grad")
    assert flops(w) == 11 * (2 * 2 * 5 * 12 * 12) + 6 * (2 * 3 * 4 * 2 * 5 * 5)


#: 100 flop/s and 10 byte/s: the rooflines meet at an intensity of 10.
ROOFLINE = Roofline("cpu", "float32", 100.0, "torch", 10.0, "numpy")


def needed(w: Workload) -> int:
    """Numbers of the inputs of sdpa that are needed, marked one by one."""
    rows, keys, pairs = set(), set(), set()
    for b, i, j in itertools.product(range(w.batch), range(w.length), range(w.keys)):
        if allowed(w, b, i, j):
            rows.add((b, i))
            keys.add((b, j))
            pairs.add((i, j))
    read_keys = w.batch * w.keys if w.kind == "decode" else len(keys)
    numbers = len(rows) * w.heads * w.width + read_keys * w.kv_heads * (w.width + w.value_width)
    return numbers + (len(pairs) * w.heads if w.has_bias else 0)


@pytest.mark.slow(1)
@pytest.mark.parametrize("name", [*NAMES, "prefill-b2h2d3s7-w2-bias-pad", "prefill-b2h2d3s9-causal-bias-pad"])
def test_inputs_are_what_allowed_pairs_need(name: str) -> None:
    """Needed are rows that see a key, keys that are seen, and pairs of a bias; grouped heads count once."""
    w = parse(name)
    results = sum(int(np.prod(shape)) for shape in arguments.results(w).values())
    lengths = 8 * w.batch if w.is_padded else sum(4 * array.size for array in arguments.structure(w).values())
    blocks = arguments.block_mask(w).size if w.kind == "blocks" else 0
    assert least_bytes(w, "float32") == 4 * (needed(w) + results) + lengths + blocks


def test_a_plain_call_reads_three_arrays_and_writes_one() -> None:
    """A number has 2 bytes in half precision."""
    assert least_bytes(parse("prefill-b1h8d64s1024"), "bfloat16") == 2 * 4 * 8 * 1024 * 64


def test_grouped_keys_are_read_once() -> None:
    """Four query heads share each key head, so a quarter of the keys and values is read."""
    plain, grouped = parse("prefill-b1h8d64s128"), parse("prefill-b1h8g2d64s128")
    assert least_bytes(plain, "float32") - least_bytes(grouped, "float32") == 4 * 2 * 6 * 128 * 64


def test_keys_behind_the_window_of_all_rows_are_not_read() -> None:
    """Padded keys, which no row of their sequence sees, are not read."""
    assert least_bytes(parse("prefill-b2h1d8s64-pad"), "float32") < least_bytes(parse("prefill-b2h1d8s64"), "float32")


def test_gradients_read_what_the_forward_pass_does_and_its_gradient() -> None:
    """Gradients also write three arrays."""
    assert least_bytes(parse("prefill-b1h8d64s128-grad"), "float32") == 4 * 7 * 8 * 128 * 64


def test_layers_read_everything_once() -> None:
    """A layer reads its input, four weights and four biases, and writes the output."""
    assert least_bytes(parse("mha-b2h2d4s16"), "float32") == 4 * (2 * 2 * 16 * 8 + 4 * 8 * 8 + 4 * 8)


def test_intensity_is_operations_per_byte() -> None:
    """S/4 in float32 for equal lengths, as 4·S²·D operations move 16·S·D bytes."""
    assert intensity(parse("prefill-b1h8d64s1024"), "float32") == 1024 / 4


def test_a_long_call_is_bound_by_products() -> None:
    """At an intensity of 256 the roofline of matrix products is the lower one."""
    w = parse("prefill-b1h8d64s1024")
    found = measures(w, "float32", flops(w) / 50, ROOFLINE)
    assert found["bound_by"] == "compute"
    assert found["share_of_peak"] == found["share_of_limit"] == pytest.approx(0.5)


def test_a_short_call_is_bound_by_memory() -> None:
    """At an intensity of 4 the memory allows 40 of the 100 flop/s."""
    w = parse("prefill-b1h8d64s16")
    found = measures(w, "float32", flops(w) / 20, ROOFLINE)
    assert found["bound_by"] == "bandwidth"
    assert (found["share_of_peak"], found["share_of_limit"]) == (pytest.approx(0.2), pytest.approx(0.5))


@pytest.mark.parametrize("roofline", [None, Roofline("cpu", "float32")])
def test_without_rooflines_there_are_no_shares(roofline: Roofline | None) -> None:
    """Bytes and intensity are known nevertheless."""
    found = measures(parse("prefill-b1h8d64s16"), "float32", 1.0, roofline)
    assert found["intensity"] == 4
    assert [found[name] for name in ("bound_by", "share_of_peak", "share_of_limit")] == [None] * 3


def test_half_of_the_rooflines_gives_half_of_the_shares() -> None:
    """Without a bandwidth the binding limit is unknown."""
    found = measures(parse("prefill-b1h8d64s16"), "float32", 1.0, Roofline("cpu", "float32", 100.0, "torch"))
    assert found["share_of_peak"] is not None
    assert found["bound_by"] is None
