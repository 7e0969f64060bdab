"""The arguments with which a workload calls an implementation."""

from __future__ import annotations

import numpy as np
import pytest

from attention_conformance.bench.workloads import arguments
from attention_conformance.bench.workloads.presets import KNOWN
from attention_conformance.bench.workloads.workload import Workload, parse
from attention_conformance.impls.operators import OPERATORS


def test_equal_seeds_give_equal_inputs_and_other_seeds_others() -> None:
    """Inputs can be regenerated from the workload, the dtype and the seed."""
    workload = Workload(2, 3, 4, 5)
    first, keywords = arguments.make(workload, "bfloat16", seed=1)
    q, k, v = first.values()
    assert q.shape == k.shape == v.shape == (2, 3, 5, 4)
    assert str(q.dtype) == "bfloat16"
    assert keywords == {}
    assert np.array_equal(q, arguments.make(workload, "bfloat16", seed=1)[0]["q"])
    assert not np.array_equal(q, arguments.make(workload, "bfloat16", seed=2)[0]["q"])
    assert not np.array_equal(q, k)


@pytest.mark.parametrize("workload", {one.operator: one for one in KNOWN.values()}.values(), ids=lambda one: one.name)
def test_arguments_are_those_of_the_operator(workload: Workload) -> None:
    """A workload has every argument of its operator, in order, and no unknown keyword."""
    operator = OPERATORS[workload.operator]
    arrays, keywords = arguments.make(workload, "float32", 0)
    assert tuple(arrays) == operator.arguments
    assert set(keywords) - {"past_key", "past_value"} <= set(operator.keywords)


def test_another_set_has_new_inputs_and_the_parameters_that_a_layer_has() -> None:
    """X and the gradient of the output change; weights, biases, gamma and beta are those of the first set."""
    for name in ("mha-b1h2d4s8-grad", "sublayer-b1h2d4s8"):
        first = arguments.make(parse(name), "float32", 0)
        other = arguments.fresh(parse(name), *first, 3)
        moved = {n for a, b in zip(first, other, strict=True) for n in a if not np.array_equal(a[n], b[n])}
        assert moved == ({"x_q", "grad_output"} if "grad" in name else {"x_q"})


def test_options_become_keywords() -> None:
    """Window, softcap, bias and lengths are given as the operator defines them; no other option is."""
    _, keywords = arguments.make(parse("prefill-b2h4d8s16-w3-cap50-bias-pad"), "float16", 0)
    assert set(keywords) == {"is_causal", "window", "softcap", "bias", "kv_lengths"}
    assert (keywords["window"], keywords["softcap"]) == ((3, 0), 50.0)
    assert keywords["bias"].shape == (1, 4, 16, 16)
    assert str(keywords["bias"].dtype) == "float16"
    assert keywords["kv_lengths"].tolist() == [16, 12]
    assert keywords["kv_lengths"].dtype == np.int64


def test_past_keys_are_keywords_of_their_own_length() -> None:
    """There are as many new keys as new rows; the past keys come before them."""
    arrays, keywords = arguments.make(parse("decode-b2h4g2d8v6s3k10"), "float32", 0)
    assert {name: array.shape for name, array in arrays.items()} == {
        "q": (2, 4, 3, 8),
        "k": (2, 2, 3, 8),
        "v": (2, 2, 3, 6),
    }
    assert (keywords["past_key"].shape, keywords["past_value"].shape) == ((2, 2, 10, 8), (2, 2, 10, 6))
    assert keywords["is_causal"] is True


def test_blocks_are_in_the_pattern_of_bigbird() -> None:
    """A row sees three blocks around its own, both end blocks and three random ones; the end blocks see everything."""
    _, keywords = arguments.make(parse("blocks-b1h4d8s66-p4"), "float32", 0)
    mask, size = keywords["block_mask"], keywords["block_size"]
    assert (mask.shape, size) == ((1, 4, 17, 17), (4, 4))
    assert mask[:, :, [0, 16]].all()
    assert mask[..., [0, 16]].all()
    assert all(mask[0, :, row, row - 1 : row + 2].all() for row in range(1, 16))
    assert (mask[0, :, 3:14].sum(-1) == 8).all()
    assert not (mask[0, 0] == mask[0, 1]).all()


def test_a_short_sequence_of_blocks_is_seen_whole() -> None:
    """Every block is seen if fewer are left than would be drawn at random."""
    assert arguments.block_mask(parse("blocks-b1h2d8s24-p4")).all()


def test_features_are_what_the_operator_does_not_always_give() -> None:
    """A layer needs the keywords of its projections; heads, gamma and beta are no features."""
    assert arguments.keywords(parse("sublayer-b1h2d4s3-causal")) == {"w_o", "b_q", "b_k", "b_v", "b_o", "is_causal"}
    assert arguments.keywords(parse("prefill-b1h2d4s3")) == set()
    assert arguments.keywords(parse("decode-b1h2d4s1k3")) == {"past_key", "past_value", "is_causal"}


def test_results_have_the_shapes_of_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients have the shapes of their inputs; present keys hold past and new ones."""
    assert arguments.results(parse("cross-b1h4g2d8v6s3k5")) == {"output": (1, 4, 3, 6)}
    assert arguments.results(parse("prefill-b1h4g2d8v6s3-bias-grad")) == {
        "grad_q": (1, 4, 3, 8),
        "grad_k": (1, 2, 3, 8),
        "grad_v": (1, 2, 3, 6),
        "grad_bias": (1, 4, 3, 3),
    }
    assert arguments.results(parse("decode-b2h4g2d8v6s3k10")) == {
        "output": (2, 4, 3, 6),
        "present_key": (2, 2, 13, 8),
        "present_value": (2, 2, 13, 6),
    }
    assert arguments.results(parse("mha-b2h4d8s3")) == {"output": (2, 3, 32)}
