"""Workloads: the shapes that are timed, each with a terse stable name such as ``prefill-b1h8d64s1024-causal``.

Grammar: ``prefill-b<B>h<H>d<D>s<S>`` with an optional ``-causal``; Hq = Hkv = H, Sq = Sk = S, Dv = D.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy)
import numpy as np

from impls.loading import nearest

_NAME = re.compile(
    r"prefill-b(?P<batch>[1-9]\d*)h(?P<heads>[1-9]\d*)d(?P<width>[1-9]\d*)s(?P<length>[1-9]\d*)(?P<causal>-causal)?"
)

#: Lengths of the default run: doublings, so that the growth is read off, up to what fits a short run on two cores.
LENGTHS = (128, 256, 512, 1024, 2048, 4096)


class WorkloadError(ValueError):
    """A workload that cannot be timed under this name; the text is one sentence for the user."""


@dataclass(frozen=True)
class Workload:
    """A forward pass over B sequences of equal length; equal workloads have equal names."""

    batch: int
    heads: int
    width: int
    length: int
    is_causal: bool = False

    @property
    def family(self) -> str:
        """The name with its length left open: workloads of one family differ in S alone."""
        return f"prefill-b{self.batch}h{self.heads}d{self.width}s*{'-causal' if self.is_causal else ''}"

    @property
    def name(self) -> str:
        """The name that ``parse`` reads back."""
        return self.family.replace("*", str(self.length))

    @property
    def keywords(self) -> dict[str, Any]:
        """The keywords of the call; what has its default value is left out, as a user would."""
        return {"is_causal": True} if self.is_causal else {}

    def inputs(self, dtype: str, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Standard normal q, k and v, each (B, H, S, D); equal seeds give equal arrays."""
        generator = np.random.default_rng([seed, self.batch, self.heads, self.width, self.length])
        shape = (self.batch, self.heads, self.length, self.width)
        q, k, v = (generator.standard_normal(shape, dtype=np.float32).astype(np.dtype(dtype)) for _ in range(3))
        return q, k, v


#: The default run.
DEFAULT = tuple(Workload(1, 8, 64, length) for length in LENGTHS)

#: What a pattern is matched against.
KNOWN = DEFAULT + tuple(Workload(1, 8, 64, length, is_causal=True) for length in LENGTHS)


def parse(name: str) -> Workload:
    """The workload of a name.  Raises WorkloadError with the nearest names if it does not follow the grammar."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise WorkloadError(f"no workload {name!r}{nearest(name, [known.name for known in KNOWN])}")
    sizes = {key: int(found[key]) for key in ("batch", "heads", "width", "length")}
    return Workload(**sizes, is_causal=found["causal"] is not None)


def select(patterns: Sequence[str]) -> tuple[Workload, ...]:
    """Workloads by names and glob patterns, shortest first; DEFAULT if there are none.

    A name need not be a known one, it only has to follow the grammar; a pattern is matched against KNOWN.
    Raises WorkloadError for a name that does not, and for a pattern that matches nothing.
    """
    chosen: list[Workload] = []
    for pattern in patterns:
        if not any(sign in pattern for sign in "*?["):
            chosen.append(parse(pattern))
            continue
        matching = [known for known in KNOWN if fnmatch.fnmatchcase(known.name, pattern)]
        if not matching:
            raise WorkloadError(f"no workload matches {pattern!r}; known: {', '.join(known.name for known in KNOWN)}")
        chosen += matching
    # Within a family the shorter one comes first: what it costs predicts the longer one.
    return tuple(sorted(dict.fromkeys(chosen or DEFAULT), key=lambda one: (one.family, one.length)))
