"""Faults on one path of a kernel: right everywhere except in calls that take the path (cases/kernel_paths.py).

A mistake is attention with a wrong step, whose tiles are those of a path.  Bound to a path it becomes a fault, whose
methods are those of correct attention in every call that does not take the path.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from attention_conformance.conformance.cases.kernel_paths import Call, KernelPath, kernel_paths
from attention_conformance.conformance.faults.models.sdpa import Attention, Inputs

#: Keywords of a call that conditions may test.
_KEYWORDS = (
    "mask",
    "bias",
    "is_causal",
    "causal_offset",
    "kv_lengths",
    "scale",
    "softcap",
    "sinks",
    "past_key",
    "return_lse",
    "return_weights",
)


#: Steps that do nothing without an option, with the name of that option.
_OPTION_OF_STEP = {
    "mask_allows": "mask",
    "added": "bias",
    "causal_allows": "causal",
    "window": "window",
    "window_allows": "window",
    "lengths_allow": "lengths",
    "capped": "softcap",
    "lse": "lse",
    "sinks": "sinks",
}


class Mistake(Attention):
    """Attention with one mistake in every call; ``path`` sets its tiles."""

    #: The clause that it breaks, and a description of it in the words of a diagnosis.
    clause: ClassVar[str]
    title: ClassVar[str]
    path: ClassVar[KernelPath]

    @classmethod
    def shows_with(cls) -> frozenset[str]:
        """Options without which the mistake changes nothing; empty for a mistake of scores, sums or heads."""
        return frozenset(option for step, option in _OPTION_OF_STEP.items() if step in _changed(cls))

    @property
    def rows(self) -> int:
        """Query rows of a tile."""
        return self.path.rows or 16

    @property
    def tile(self) -> int:
        """Keys of a tile."""
        return self.path.keys or 16


Class = TypeVar("Class", bound=type[Mistake])


def mistake(clause: str, title: str) -> Callable[[Class], Class]:
    """Set the clause that a mistake breaks, and its title."""

    def said(make: Class) -> Class:
        make.clause, make.title = clause, title
        return make

    return said


def call_of(x: Inputs) -> Call:
    """The call, as conditions see it."""
    keywords = {name: getattr(x, name) for name in _KEYWORDS}
    keywords["window"] = None if x.window in (None, (None, None)) else x.window
    b, hq, sq, sk = x.shape
    return Call.of(b, hq, x.k.shape[1], sq, sk, x.q.shape[3], x.v.shape[3], str(x.dtype), keywords)


def bound(path: str, make: type[Attention], name: str) -> type[Mistake]:
    """The mistake on one path, as a class of this name.

    Parameters
    ----------
    path
        An id of kernel_paths.toml.
    make
        The mistake, or a fault of attention that has no tiles.
    name
        Name of the class.

    Returns
    -------
    type of Mistake
        A class whose methods are correct attention's for calls that do not take the path.

    Raises
    ------
    KeyError
        For an unknown path.
    """
    taken = kernel_paths()[path]
    base = make if issubclass(make, Mistake) else type(make.__name__, (make, Mistake), {})
    methods = {each: _guarded(each) for each in _changed(base)}
    doc = f"{make.__doc__}\n\nWhere {taken.kernel} has a path of its own: {taken.what}."
    return type(name, (base,), {"path": taken, "__doc__": doc, "__module__": make.__module__} | methods)


def _changed(make: type[Mistake]) -> list[str]:
    """The steps of correct attention that a mistake overrides."""
    before = make.__mro__[: make.__mro__.index(Attention)]
    own = {name for each in before for name, value in vars(each).items() if callable(value)}
    return sorted(name for name in own if not name.startswith("__") and name in dir(Attention))


def _guarded(name: str) -> Callable[..., Any]:
    correct = getattr(Attention, name)

    @functools.wraps(correct)
    def step(self: Mistake, x: Inputs, *rest: Any) -> Any:
        if not self.path.taken(call_of(x)):
            return correct(self, x, *rest)
        return getattr(super(type(self), self), name)(x, *rest)

    return step
