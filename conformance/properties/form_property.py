"""Properties of forms, which are serving operators or what they are called with, and their registry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from attention_conformance.conformance.properties.properties import Property
from attention_conformance.conformance.properties.serving import FORMS
from attention_conformance.conformance.properties.strategies import serving_problems
from attention_conformance.conformance.properties.trial import Trial

SERVING_PROPERTIES: dict[str, ServingProperty] = {}


@dataclass(frozen=True)
class ServingProperty(Property):
    """A property of a serving form."""

    form: str = ""

    @property
    def operator(self) -> str:
        """The operator that it tests."""
        return FORMS[self.form]

    def problems(self, keywords: frozenset[str], few: bool) -> st.SearchStrategy[Any]:
        """Problems to draw for an implementation with these keywords."""
        barred = {name for name, needed in self.unless.items() if needed not in keywords}
        return serving_problems(self.form, keywords - barred, self.needs, few)

    __hash__ = Property.__hash__


def follows(form: str, clause: str, needs: str = "", **unless: str) -> Callable[[Callable[[Trial], None]], Any]:
    """Register a property of a form; its name is the form and the function's name, in kebab case."""

    def register(check: Callable[[Trial], None]) -> Callable[[Trial], None]:
        name = f"{form}-{check.__name__}".replace("_", "-")
        SERVING_PROPERTIES[name] = ServingProperty(name, clause, check, frozenset(needs.split()), unless, form)
        return check

    return register
