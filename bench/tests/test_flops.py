"""The count of floating-point operations, against counting them one by one."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from attention_conformance import bench
from attention_conformance.bench.workloads.costs import FORMULAS, flops, pairs
from attention_conformance.bench.workloads.workload import Workload, parse

#: Small forms of everything that decides which pairs are allowed.
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
)


def allowed(w: Workload, b: int, i: int, j: int) -> bool:
    """Whether row i of sequence b may attend to key j, by the words of the grammar."""
    position = w.past + i
    if w.is_causal and j > position:
        return False
    if w.window is not None and j < position - w.window:
        return False
    return j < w.kv_lengths[b]


def counted(w: Workload) -> int:
    """Allowed pairs of one head, one by one."""
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


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("decode")])
def test_gradients_have_five_products(name: str) -> None:
    """q·k, dQ and dK are sums or terms of width D, dP and dV of width Dv."""
    w = parse(f"{name}-grad")
    assert flops(w) == counted(w) * w.heads * (3 * 2 * w.width + 2 * 2 * w.value_width)


def test_gradients_are_two_and_a_half_forward_passes() -> None:
    """Where D = Dv."""
    assert 2 * flops(parse("prefill-b1h8d64s64-causal-grad")) == 5 * flops(parse("prefill-b1h8d64s64-causal"))


@pytest.mark.parametrize("kind", ["mha", "sublayer"])
def test_a_layer_has_four_projections_and_its_attention(kind: str) -> None:
    """Each projection multiplies every token by a square matrix of E = H · D."""
    w = parse(f"{kind}-b2h3d4s5-causal-pad")
    attention = flops(parse("prefill-b2h3d4s5-causal-pad"))
    assert flops(w) == 4 * (2 * 2 * 5 * 12 * 12) + attention


@pytest.mark.parametrize("operator", FORMULAS)
def test_formulas_stand_in_the_readme(operator: str) -> None:
    """What is printed there is what the records have."""
    page = (Path(bench.__file__).parent / "README.md").read_text(encoding="utf-8")
    assert f"| {operator} | `{FORMULAS[operator]}` |" in page


@pytest.mark.parametrize(
    "name", ["prefill-b2h4g2d3v5s9-w3", "cross-b2h2d3s9k4-pad-grad", "mha-b2h3d4s5", "mha-b2h3d4s5-grad"]
)
def test_the_formula_is_what_is_counted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The printed text, evaluated, gives the number."""
    monkeypatch.setattr(
        "attention_conformance.bench.workloads.workload.OPERATORS", dict.fromkeys(("sdpa_grad", "mha_grad"))
    )
    w = parse(name)
    text = FORMULAS[w.operator].replace("·", "*").replace("E²", "E**2")
    sizes = {"B": w.batch, "H": w.heads, "S": w.length, "D": w.width, "Dv": w.value_width, "E": w.heads * w.width}
    assert eval(text, {**sizes, "pairs": pairs(w) / w.batch}) == flops(w)  # noqa: S307  (our own text)


def test_gradients_of_a_layer_have_eleven_projections_and_six_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of each of q, k and v, two of the output; of attention the five and P·V."""
    monkeypatch.setattr(
        "attention_conformance.bench.workloads.workload.OPERATORS", dict.fromkeys(("sdpa_grad", "mha_grad"))
    )
    w = parse("mha-b2h3d4s5-grad")
    assert flops(w) == 11 * (2 * 2 * 5 * 12 * 12) + 6 * (2 * 3 * 4 * 2 * 5 * 5)
