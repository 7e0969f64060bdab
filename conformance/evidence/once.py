"""Cases of one use: each keeps its inputs, reference and bounds itself, and is forgotten with them.

The suite's own cases are kept for ever; random problems are many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar, Protocol

from conformance.cases import base, gradient, layer, mha_gradient
from conformance.cases.anycase import AnyCase
from conformance.cases.base import Case
from conformance.cases.gradient import GradientCase
from conformance.cases.layer import MhaCase, SublayerCase
from conformance.cases.mha_gradient import MhaGradientCase
from impls.contract import Profile


class Drawn(Protocol):
    """A random problem."""

    def case(self) -> AnyCase:
        """The problem as a case, for every dtype."""


#: What makes inputs, reference and bound of a case anew: the functions behind the caches of the suite's own cases.
Makers = Mapping[str, Callable[..., Any]]


def _makers(inputs: Any, expected: Any, bound: Any, named: bool = False) -> Makers:
    """From the three cached functions; with ``named`` the bound is a table that has to become attributes."""
    of_bound = bound.__wrapped__
    return {
        "inputs": inputs.__wrapped__,
        "expected": expected.__wrapped__,
        "bound": (lambda *arguments: SimpleNamespace(**of_bound(*arguments))) if named else of_bound,
    }


@dataclass(frozen=True, eq=False)
class Once(AnyCase):
    """What cases of one use of every operator do alike: there is one dtype, and what was made is held."""

    makers: ClassVar[Makers]
    dtype: str = ""
    held: dict[tuple[Any, ...], Any] = field(default_factory=dict, repr=False)

    def inputs(self, dtype: str) -> Any:
        """The inputs."""
        return self._made("inputs", dtype)

    def expected(self, dtype: str) -> Any:
        """What the reference says of them."""
        return self._made("expected", dtype)

    def bound(self, dtype: str, profile: Profile) -> Any:
        """The error bound for them."""
        return self._made("bound", dtype, profile)

    def _made(self, what: str, *arguments: Any) -> Any:
        if (what, *arguments) not in self.held:
            self.held[what, *arguments] = self.makers[what](self, *arguments)
        return self.held[what, *arguments]


@dataclass(frozen=True, eq=False)
class _Sdpa(Once, Case):
    makers = _makers(base._inputs, base._expected, base._bound)


@dataclass(frozen=True, eq=False)
class _Mha(Once, MhaCase):
    makers = _makers(layer._inputs, layer._mha, layer._bound)


@dataclass(frozen=True, eq=False)
class _Sublayer(Once, SublayerCase):
    makers = _makers(layer._inputs, layer._sublayer, layer._bound)


@dataclass(frozen=True, eq=False)
class _SdpaGradient(Once, GradientCase):
    makers = _makers(gradient._inputs, gradient._expected, gradient._bound, named=True)


@dataclass(frozen=True, eq=False)
class _MhaGradient(Once, MhaGradientCase):
    makers = _makers(mha_gradient._inputs, mha_gradient._expected, mha_gradient._bound, named=True)


_OF_OPERATOR: dict[str, type[Once]] = {
    each.operator: each for each in (_Sdpa, _Mha, _Sublayer, _SdpaGradient, _MhaGradient)
}


def once(problem: Drawn, dtype: str) -> Any:
    """The case of a problem, in a dtype."""
    case = problem.case()
    return _OF_OPERATOR[case.operator](**vars(case), dtype=dtype)
