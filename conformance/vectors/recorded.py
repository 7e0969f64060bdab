"""A vector as a case, so that it is judged as every case is, by what its files say instead of the suite's own."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from conformance.cases import AnyCase, Case, every_case
from conformance.vectors.vector import Vector
from impls.contract import Profile


@dataclass(frozen=True)
class Recorded(AnyCase):
    """A case whose inputs, expected results and bounds are those of a vector.  Made by ``recorded``."""

    vector: Vector | None = None

    def inputs(self, dtype: str) -> Any:
        """The recorded inputs."""
        about, arrays = self._about, self._arrays("input")
        keywords = {name: arrays[name] for name in about.keywords} | dict(about.options)
        return SimpleNamespace(arrays={name: arrays[name] for name in about.arguments}, keywords=keywords)

    def expected(self, dtype: str) -> Any:
        """The recorded results; of sdpa also v with one head per query head, to tell what a wrong output looks like."""
        results = self._arrays("expected")
        values = {"v": _values(self._arrays("input"), results["output"])} if self.operator == Case.operator else {}
        return SimpleNamespace(**results, **values)

    def bound(self, dtype: str, profile: Profile) -> Any:
        """The recorded bounds under a profile."""
        return SimpleNamespace(**self._arrays(f"bound.{profile.value}"))

    def axes(self, result: str) -> tuple[str, ...]:
        """Names of the axes of a result."""
        return self._about.results[result].axes

    def results(self) -> tuple[str, ...]:
        """Names of the results that are asked for, in order."""
        return tuple(self._about.results)

    @property
    def _about(self) -> Any:
        assert self.vector is not None
        return self.vector.about

    def _arrays(self, kind: str) -> dict[str, np.ndarray]:
        """The arrays of a kind by the rest of their names."""
        assert self.vector is not None
        return {n.removeprefix(f"{kind}."): a for n, a in self.vector.arrays.items() if n.startswith(f"{kind}.")}

    def __hash__(self) -> int:
        return hash(self.name)


def recorded(vector: Vector) -> Recorded:
    """The case of a vector."""
    about = vector.about
    return _kind(about.operator)(
        about.case,
        about.clauses,
        about.why,
        shape=None,
        options=about.options,
        dtypes=(about.dtype,),
        memory=about.memory,
        repeats=about.repeats,
        invalid=about.refused,
        after=about.after,
        vector=vector,
    )


@functools.cache
def _kind(operator: str) -> type[Recorded]:
    """The class for an operator, with the blame of the suite's own cases of it."""
    blame = next(case.blame for case in every_case().values() if case.operator == operator)
    return type("Recorded", (Recorded,), {"operator": operator, "blame": blame})


def _values(inputs: dict[str, np.ndarray], output: np.ndarray) -> np.ndarray:
    """All values with one head per query head, in float64; none where they do not fit the output."""
    parts = [inputs[name].astype(np.float64) for name in ("past_value", "v") if name in inputs]
    b, heads, _, width = output.shape
    if all(p.ndim == 4 and p.shape[0] == b and p.shape[1] and p.shape[3] == width for p in parts):
        repeated = [np.repeat(p, heads // p.shape[1], axis=1) for p in parts]
        if all(p.shape[1] == heads for p in repeated):
            return np.concatenate(repeated, axis=2)
    return np.zeros((b, heads, 0, width))
