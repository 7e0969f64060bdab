"""Random problems of sdpa with more to them: a past that its keys are split by, and a gradient of its output."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.conformance.cases.base import Case
from attention_conformance.conformance.cases.data import Rng, Shape
from attention_conformance.conformance.cases.gradient import GradientCase
from attention_conformance.conformance.evidence.problems import SEED, Limits, drawn_problem, happens, log_uniform
from attention_conformance.conformance.properties.problem import Problem
from attention_conformance.conformance.spec.inputs import GradientInputs

#: Set the numbers of a problem apart from those of problems of sdpa with the same index.
DECODING, GRADIENTS = 2, 3

#: Decoding is of few rows over many keys; a backward pass has as many sums over rows as over keys.
DECODED, DIFFERENTIATED = Limits(keys=1024, work=2**20), Limits(keys=512, rows=64, work=2**19)

#: How many of a hundred problems have each of these.
CHANCE = {
    "sinks": 20,
    "all new": 60,  # the rows' own keys are the new ones, as in every step of a model
    "ones": 15,  # the loss is the sum of the output
}

#: Ranges of the log-uniform spread of sinks and of a gradient of the output.
SINKS, GRADIENT = (0.1, 30.0), (0.01, 30.0)


@dataclass(frozen=True)
class DecodeProblem:
    """A problem of sdpa of whose keys the first ``past`` are past ones; ``sinks`` is the spread of its sinks."""

    of_sdpa: Problem
    past: int
    sinks: float | None = None

    @property
    def shape(self) -> Shape:
        """Lengths and widths; Sk counts past and new keys."""
        return self.of_sdpa.shape

    def case(self) -> Case:
        """The problem as a case, for every dtype."""
        case = self.of_sdpa.case()
        extra = {} if self.sinks is None else {"sinks": partial(_per_head, self.sinks)}
        return replace(case, past=self.past, options={**case.options, **extra})


def decode_problem(index: int) -> DecodeProblem:
    """The problem of an index, always the same one."""
    rng = np.random.default_rng((SEED, index, DECODING))
    problem = drawn_problem(rng, f"evidence-decode-{index}", DECODED)
    sinks = log_uniform(rng, *SINKS) if happens(rng, "sinks", CHANCE) else None
    keys, rows = problem.shape.sk, problem.shape.sq
    past = keys - rows if keys >= rows and happens(rng, "all new", CHANCE) else int(rng.integers(keys + 1))
    return DecodeProblem(problem, past, sinks)


def _per_head(spread: float, rng: Rng, s: Shape, dtype: np.dtype) -> np.ndarray:
    return (spread * rng.standard_normal(s.hq)).astype(dtype)


@dataclass(frozen=True)
class GradientProblem:
    """A problem of sdpa with a gradient of its output: normal numbers of this spread, or ones times it."""

    of_sdpa: Problem
    gradient: float
    ones: bool = False

    @property
    def shape(self) -> Shape:
        """Lengths and widths."""
        return self.of_sdpa.shape

    def case(self) -> GradientCase:
        """The problem as a case, for every dtype."""
        x = self.of_sdpa.case()
        return GradientCase(x.name, ("GRAD-9",), x.why, x.shape, x.data, x.options, edit=self._sized, dtypes=x.dtypes)

    def _sized(self, x: GradientInputs) -> GradientInputs:
        return replace(x, grad_output=sized(x.grad_output, self.gradient, self.ones))


def sized(drawn: np.ndarray, size: float, ones: bool) -> np.ndarray:
    """A gradient of the output: what was drawn, or ones, times a size."""
    array: Any = np.ones(drawn.shape) if ones else drawn.astype(np.float64)
    return (size * array).astype(drawn.dtype)


def gradient_problem(index: int) -> GradientProblem:
    """The problem of an index, always the same one."""
    rng = np.random.default_rng((SEED, index, GRADIENTS))
    problem = drawn_problem(rng, f"evidence-gradient-{index}", DIFFERENTIATED)
    problem = replace(problem, return_weights=False, return_lse=False)
    return GradientProblem(problem, log_uniform(rng, *GRADIENT), happens(rng, "ones", CHANCE))
