"""Factors of the gradients of q, k and v, solved for from wrong gradients like the parameters of the forward pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any, ClassVar

import numpy as np

from attention_conformance.conformance.faults.models.gradients import Backward
from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.conformance.faults.registry import Fault
from attention_conformance.conformance.faults.trials import Failed, explains

#: Relative distance of a factor from 1, or from a formula, within which it is taken for it.
NEAR = 1e-3

Law = Callable[[Inputs], float]


class ScaledGradients(Backward):
    """Some of the gradients of q, k and v times a number that a law gives for each call."""

    #: The letters of the gradients.
    of: ClassVar[str]
    law: ClassVar[Law]

    def gradients(self, x: Inputs, g: Array) -> list[Array]:
        """The gradients, scaled."""
        grads = super().gradients(x, g)
        number = x.work(type(self).law(x))
        return [grad * number if name in self.of else grad for name, grad in zip("qkvb", grads, strict=False)]


def _scale(x: Inputs) -> float:
    return Attention().scale(x)


#: Factors that mistakes have, in words; G is the number of query heads of a key head.
FACTORS: dict[str, Law] = {
    "the scale": _scale,
    "1/√D": lambda x: 1 / math.sqrt(x.q.shape[3]),
    "√D": lambda x: math.sqrt(x.q.shape[3]),
    "the scale without its sign": lambda x: abs(_scale(x)),
    "1/scale": lambda x: 1 / scale if (scale := _scale(x)) else 1.0,
    "1/G": lambda x: 1 / x.group,
    "G": lambda x: float(x.group),
    "1/Hq": lambda x: 1 / x.q.shape[1],
    "1/B": lambda x: 1 / len(x.q),
    "1/Sq": lambda x: 1 / max(1, x.q.shape[2]),
    "1/Sk": lambda x: 1 / max(1, x.k.shape[2]),
    "−1": lambda x: -1.0,
    "2": lambda x: 2.0,
    "1/2": lambda x: 0.5,
    "ln 2": lambda x: math.log(2),
    "log2(e)": lambda x: 1 / math.log(2),
}

#: Those that are the same number in every call.
PLAIN = ("−1", "2", "1/2", "ln 2", "log2(e)")


def gradient_factors(failures: Sequence[Failed]) -> list[Fault]:
    """Factors that give some of the failed gradients, each as a fault with its own title.

    Parameters
    ----------
    failures
        Failures of sdpa_grad with a wrong number.

    Returns
    -------
    list of Fault
        Formulas before constants, so that the first of two that fit alike says more.
    """
    found: dict[str, Fault] = {}
    estimates = [(_call(failed), *each) for failed in failures for each in _estimate(failed)]
    for x, of, number in estimates:
        sizes = f"where D = {x.q.shape[3]}"
        for text, law in FACTORS.items():
            if math.isclose(law(x), number, rel_tol=NEAR):
                example = f"{_digits(number)} {f'where G = {x.group}' if 'G' in text else sizes}"
                said = text if text in PLAIN else f"{text} ({example})"
                found.setdefault(f"{of} {text}", _fault(of, said, law))
    for _, of, number in estimates:
        text = _digits(number)
        found.setdefault(f"{of} {text}", _fault(of, text, lambda _, number=number: number))  # type: ignore[misc]
    return list(found.values())


def _fault(of: str, number: str, law: Law) -> Fault:
    make = type("ScaledGradients", (ScaledGradients,), {"of": of, "law": staticmethod(law), "__module__": __name__})
    names = " and ".join(filter(None, [", ".join(of[:-1]), of[-1]]))
    many = "gradients of {} are the expected ones" if len(of) > 1 else "gradient of {} is the expected one"
    clause = "GRAD-6" if "G" in number else "GRAD-4"
    return Fault("fitted-gradient", clause, f"the {many.format(names)} times {number}", (), make)


def _digits(number: float) -> str:
    return f"{number:.5g}".replace("-", "−")


def _call(failed: Failed) -> Inputs:
    given = failed.case.inputs(failed.dtype)
    known = {f.name for f in fields(Inputs)}
    arrays = {n: v for n, v in (given.arrays | dict(given.keywords)).items() if n in known}
    return Inputs(**arrays)


def _estimate(failed: Failed) -> Iterator[tuple[str, float]]:
    """The gradients of a failure that are wrong by one factor, and it; nothing where the factor does not give them."""
    numbers: dict[str, float] = {}
    expected: Any = failed.case.expected(failed.dtype)
    for name in "qkv":
        got = failed.reply.results.get(f"grad_{name}")
        right = np.asarray(getattr(expected, f"grad_{name}"), np.float64)
        if got is None or got.shape != right.shape or not np.isfinite(got.astype(np.float64)).all() or not right.any():
            continue
        number = float((got.astype(np.float64) * right).sum() / (right * right).sum())
        if not math.isclose(number, 1, rel_tol=NEAR):
            numbers[name] = number
    if not numbers or any(not math.isclose(n, next(iter(numbers.values())), rel_tol=NEAR) for n in numbers.values()):
        return
    of, number = "".join(numbers), next(iter(numbers.values()))
    if explains(_fault(of, "", lambda _: number).make, failed):
        yield of, number
