"""Helpers of the property tests: a fake as a target, and a run of one property on it."""

from __future__ import annotations

from attention_conformance.conformance.judging.outcomes import Result
from attention_conformance.conformance.ledger.load import Deviation
from attention_conformance.conformance.properties.properties import PROPERTIES
from attention_conformance.conformance.properties.run import Setting, fuzz
from attention_conformance.conformance.properties.trial import Context
from attention_conformance.conformance.targets import Target
from attention_conformance.conformance.tests import property_fakes
from attention_conformance.impls.contract import Implementation
from attention_conformance.impls.loading import keywords
from attention_conformance.impls.process.pool import Pool

#: Enough examples to catch every fake, in a second or two.
EXAMPLES = 150


def context(
    name: str,
    dtype: str = "float32",
    records: tuple[Deviation, ...] = (),
    pool: Pool | None = None,
    timeout: float | None = None,
    accepts: frozenset[str] | None = None,
) -> Context:
    """A fake of property_fakes as a target; ``accepts`` narrows its keywords."""
    implementation = Implementation(name, f"attention_conformance.conformance.tests.property_fakes:{name}")
    known = keywords(getattr(property_fakes, name))
    target = Target(implementation, "cpu", dtype)
    return Context(
        target, pool or Pool(in_process=True), known if accepts is None else known & accepts, records, timeout
    )


def run(prop: str, tested: Context, examples: int = EXAMPLES, seed: int = 1, *, shrink: bool = True) -> Result:
    """The result of a property."""
    return fuzz(PROPERTIES[prop], tested, Setting(examples, seed, shrink))
