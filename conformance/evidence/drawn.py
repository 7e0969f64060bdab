"""Statistics of the random problems: how many have which option, and the range of every size, for each series."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attention_conformance.conformance.evidence.derived_problems import DecodeProblem, GradientProblem
from attention_conformance.conformance.evidence.mha_problems import LayerProblem
from attention_conformance.conformance.evidence.series import Series
from attention_conformance.conformance.properties.problem import Problem

#: What a problem may have, and whether it has it.
Has = Mapping[str, Callable[[Any], bool]]
#: Sizes of a problem.
Sizes = Mapping[str, Callable[[Any], float]]


def _given(name: str) -> Callable[[Any], bool]:
    """Whether an option is given."""
    return lambda p: getattr(p, name) is not None


def _broadcast(p: Any) -> bool:
    """Whether a mask or bias has an axis of length 1, or fewer axes than the scores."""
    given = (x.axes for x in (p.mask, p.bias) if x is not None)
    return any(1 in axes or len(axes) < len(p.shape.scores) for axes in given)


OF_SDPA: Mapping[str, Callable[[Problem], bool]] = {
    "mask": _given("mask"),
    "bias": _given("bias"),
    "a mask or bias that is repeated along an axis": _broadcast,
    "is_causal": lambda p: p.is_causal,
    "causal_offset": _given("causal_offset"),
    "causal_offset, negative": lambda p: isinstance(p.causal_offset, int) and p.causal_offset < 0,
    "causal_offset, one for each batch": lambda p: isinstance(p.causal_offset, tuple),
    "window": _given("window"),
    "kv_lengths": _given("kv_lengths"),
    "kv_lengths with a 0": lambda p: p.kv_lengths is not None and 0 in p.kv_lengths,
    "scale": _given("scale"),
    "scale 0": lambda p: p.scale == 0,
    "scale, negative": lambda p: p.scale is not None and p.scale < 0,
    "softcap": _given("softcap"),
    "return_weights": lambda p: p.return_weights,
    "return_lse": lambda p: p.return_lse,
    "grouped heads": lambda p: p.shape.hq > p.shape.hkv,
    "an offset of all scores": lambda p: p.offset != 0,
    "an outlier key": lambda p: p.outlier != 1,
}

SIZES_OF_SDPA: Mapping[str, Callable[[Problem], float]] = {
    "D": lambda p: p.shape.d,
    "Dv": lambda p: p.shape.dv,
    "Sk": lambda p: p.shape.sk,
    "Sq": lambda p: p.shape.sq,
    "standard deviation of q and k": lambda p: p.spread,
    "standard deviation of v": lambda p: p.values,
    "offset of all scores": lambda p: p.offset,
    "length of one key over the others'": lambda p: p.outlier,
}

#: Options that gradients have not.
_RESULTS = ("return_weights", "return_lse")


def _within(tests: Mapping[str, Callable[[Problem], Any]], without: tuple[str, ...] = ()) -> dict[str, Any]:
    """The tests of problems of sdpa, of problems that contain one."""

    def inside(test: Callable[[Problem], Any]) -> Callable[[Any], Any]:
        return lambda p: test(p.of_sdpa)

    return {name: inside(test) for name, test in tests.items() if name not in without}


_OF_DECODE: Mapping[str, Callable[[DecodeProblem], bool]] = {
    "a past that ends before the rows": lambda p: p.past == p.shape.sk - p.shape.sq,
    "no past key": lambda p: p.past == 0,
    "no new key": lambda p: p.past == p.shape.sk,
    "sinks": _given("sinks"),
}
_OF_GRADIENT: Mapping[str, Callable[[GradientProblem], bool]] = {"a gradient of ones": lambda p: p.ones}

_OF_LAYER: Mapping[str, Callable[[LayerProblem], bool]] = {
    "x_kv": lambda p: p.cross,
    "w_o": lambda p: p.projected,
    "every bias": lambda p: len(p.biases) == 3 + p.projected,
    "no bias": lambda p: not p.biases,
    "mask": _given("mask"),
    "bias": _given("bias"),
    "a mask or bias that is repeated along an axis": _broadcast,
    "is_causal": lambda p: p.is_causal,
    "kv_lengths": _given("kv_lengths"),
    "kv_lengths with a 0": lambda p: p.kv_lengths is not None and 0 in p.kv_lengths,
    "scale": _given("scale"),
    "unbatched": lambda p: p.shape.unbatched,
    "sequence_first": lambda p: p.shape.sequence_first,
    "several heads": lambda p: p.shape.heads > 1,
    "a mean of the inputs": lambda p: p.offset != 0,
    "an outlier row": lambda p: p.outlier != 1,
}

_SIZES_OF_LAYER: Mapping[str, Callable[[LayerProblem], float]] = {
    "E": lambda p: p.shape.e,
    "Ekv": lambda p: p.shape.ekv,
    "Eo": lambda p: p.shape.eo,
    "H · D": lambda p: p.shape.heads * p.shape.d,
    "H · Dv": lambda p: p.shape.heads * p.shape.dv,
    "Sk": lambda p: p.shape.sk,
    "Sq": lambda p: p.shape.sq,
    "standard deviation of projected q and k": lambda p: p.spread,
    "standard deviation of the inputs": lambda p: p.values,
    "mean of the inputs, in standard deviations": lambda p: p.offset,
    "length of one row over the others'": lambda p: p.outlier,
}

HAS: Mapping[str, Has] = {
    "sdpa": OF_SDPA,
    "decode": {**_within(OF_SDPA), **_OF_DECODE},
    "mha": {
        **_OF_LAYER,
        "return_weights": lambda p: p.return_weights,
        "average_weights": lambda p: p.average_weights,
    },
    "sublayer": {**_OF_LAYER, "pre_norm": lambda p: p.pre_norm},
    "sdpa_grad": {**_within(OF_SDPA, _RESULTS), **_OF_GRADIENT},
    "mha_grad": {**_OF_LAYER, "a gradient of ones": lambda p: p.ones},
}

SIZES: Mapping[str, Sizes] = {
    "sdpa": SIZES_OF_SDPA,
    "decode": {**_within(SIZES_OF_SDPA), "past keys": lambda p: p.past},
    "mha": _SIZES_OF_LAYER,
    "sublayer": {**_SIZES_OF_LAYER, "epsilon": lambda p: p.epsilon},
    "sdpa_grad": {**_within(SIZES_OF_SDPA), "size of grad_output": lambda p: p.gradient},
    "mha_grad": {**_SIZES_OF_LAYER, "size of grad_output": lambda p: p.gradient},
}


def drawn(series: Series, problems: int) -> dict[str, Any]:
    """What the first problems of a series are."""
    every = [series.problem(index) for index in range(problems)]
    dtypes = [series.dtype(index) for index in range(problems)]
    sizes = SIZES[series.name]
    return {
        "dtypes": {name: dtypes.count(name) for name in sorted(set(dtypes))},
        "has": {name: sum(bool(test(p)) for p in every) for name, test in HAS[series.name].items()},
        "sizes": {name: [min(map(size, every)), max(map(size, every))] for name, size in sizes.items()},
    }
