"""Features: named groups of cases that an implementation may claim, and how many of their cases it keeps.

A feature is what a user asks for: causal masks, windows, decoding.  Every case belongs to exactly one feature, found
from what the case needs: its keywords, grouped heads, a memory layout, an input that must be refused.  Cases that need
two features or more belong to ``combinations``, so that an implementation without one feature can keep another in full.
The denominator is fixed: the feature's cases × the dtypes in which they are run, less those that cannot be run inside
the implementation's envelope.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from attention_conformance.conformance.cases import AnyCase, asked_cases, every_case
from attention_conformance.conformance.cases.fit import dtypes_for
from attention_conformance.conformance.judging.outcomes import Outcome, Result
from attention_conformance.impls.operators import (
    LATENT,
    MERGE,
    MERGE_GRAD,
    MHA,
    MHA_GRAD,
    PAGED,
    SDPA,
    SDPA_GRAD,
    SUBLAYER,
    VARLEN,
    VARLEN_GRAD,
)

#: Needs of a case that are no keywords: fewer heads of k and v than of q, strides, an input that must be refused.
GROUPED, MEMORY, INVALID = "grouped heads", "memory layout", "invalid input"


@dataclass(frozen=True)
class Feature:
    """A name, what its cases need, and what they may need in addition."""

    name: str
    needs: frozenset[str] = frozenset()
    along: frozenset[str] = frozenset()
    operators: tuple[str, ...] = (SDPA.name,)

    def has(self, needs: frozenset[str]) -> bool:
        """Whether a case of sdpa with these needs belongs to this feature."""
        return self.needs <= needs <= self.needs | self.along


def _feature(name: str, needs: str = "", *, along: Iterable[str] = ()) -> Feature:
    return Feature(name, frozenset(needs.split()), frozenset(along))


CORE, VALIDATION, COMBINATIONS = "core", "validation", "combinations"

#: The features of sdpa in the order of the spec; the clauses are those that their cases name first.
_SDPA = (
    _feature(CORE),  # SDPA-1 to 3, 14 to 16, 20, 23, 25 to 27, 29
    Feature(VALIDATION, frozenset({INVALID})),  # SDPA-31 to 35
    Feature("memory-layouts", frozenset({MEMORY})),  # SDPA-30
    _feature("scale", "scale"),  # SDPA-2, 4, 28
    _feature("softcap", "softcap"),  # SDPA-5
    _feature("bias", "bias", along={INVALID}),  # SDPA-6, 8, 24, 27, 36
    _feature("masks", "mask", along={INVALID, MEMORY}),  # SDPA-7, 8, 15, 21, 22, 30, 36
    _feature("causal", "is_causal"),  # SDPA-9
    _feature("offsets", "is_causal causal_offset"),  # SDPA-10
    _feature("windows", "window", along={"is_causal"}),  # SDPA-11
    _feature("lengths", "kv_lengths"),  # SDPA-12
    Feature("grouped-heads", frozenset({GROUPED})),  # SDPA-17
    _feature("weights", "return_weights"),  # SDPA-18
    _feature("lse", "return_lse"),  # SDPA-19
    _feature("sinks", "sinks"),  # SDPA-38
    _feature("alibi", "alibi_slopes", along={"causal_offset", INVALID}),  # SDPA-42
    _feature("head-scales", "head_scale", along={INVALID}),  # SDPA-43
    _feature("rotary", "rotary_cos rotary_sin", along={"rotary_interleaved", "causal_offset", INVALID}),  # SDPA-44
    _feature("block-masks", "block_mask block_size", along={INVALID}),  # BLOCK-1 to 5
    _feature("trees", "tree_parents", along={"causal_offset", INVALID}),  # TREE-1 to 4
    _feature("decoding", "past_key past_value", along={"is_causal", INVALID, MEMORY}),  # DEC-1 to 4, 6, 7
    _feature("caches", "kv_lengths causal_offset is_causal"),  # DEC-5
)

#: All features: those of sdpa, and those of the other operators.
FEATURES = {
    feature.name: feature
    for feature in (
        *_SDPA,
        Feature(COMBINATIONS),  # SDPA-13, and every pair
        Feature("mha", operators=(MHA.name,)),
        Feature("sublayer", operators=(SUBLAYER.name,)),
        Feature("gradients", operators=(SDPA_GRAD.name, MHA_GRAD.name, VARLEN_GRAD.name, MERGE_GRAD.name)),
        Feature("varlen", operators=(VARLEN.name,)),
        Feature("paged", operators=(PAGED.name,)),
        Feature("merge", operators=(MERGE.name,)),
        Feature("latent", operators=(LATENT.name,)),
    )
}


def needs(case: AnyCase) -> frozenset[str]:
    """Needs of a case of sdpa: its keywords, and needs that are no keywords.

    Parameters
    ----------
    case
        A case of sdpa.

    Returns
    -------
    frozenset[str]
        Keywords, such as "mask", "is_causal".
    """
    grouped = case.shape.hq != case.shape.hkv
    others = ((GROUPED, grouped), (MEMORY, case.memory != "contiguous"), (INVALID, case.invalid))
    return case.keywords | {name for name, needed in others if needed}


@functools.cache
def feature_of(case: AnyCase) -> str:
    """The name of the one feature that a case belongs to.

    Parameters
    ----------
    case
        A case of any operator.

    Returns
    -------
    str
        Name of the feature, such as "core" or "causal".
    """
    if case.operator != SDPA.name:
        return next(f.name for f in FEATURES.values() if case.operator in f.operators)
    needed = needs(case)
    return next((feature.name for feature in _SDPA if feature.has(needed)), COMBINATIONS)


@functools.cache
def cases_of(feature: str, operator: str) -> tuple[AnyCase, ...]:
    """The cases of a feature that belong to an operator.

    Parameters
    ----------
    feature
        Name of the feature.
    operator
        Operator, such as "sdpa".

    Returns
    -------
    tuple[AnyCase, ...]
        Cases of the feature, in the order of the suite.
    """
    return tuple(c for c in every_case().values() if c.operator == operator and feature_of(c) == feature)


class Standing(StrEnum):
    """Standing of an implementation towards a feature."""

    CONFORMANT = "conformant"  # every case kept
    NOT = "not"  # some case failed, or deviates
    PART = "in part"  # none failed; some are unsupported
    UNSUPPORTED = "unsupported"  # every case
    UNJUDGED = "not judged in full"  # cases were left out of the run, and none of the others failed


@dataclass(frozen=True)
class Claim:
    """Claim to a feature by the results of one implementation on one device; numbers count cases × dtypes."""

    feature: str
    #: The fixed denominator.
    cases: int
    #: Passed, or only a SHOULD is not followed, which is no obligation.
    kept: int
    unsupported: int
    failed: int

    @property
    def judged(self) -> int:
        """Number of the cases that the run had."""
        return self.kept + self.unsupported + self.failed

    @property
    def standing(self) -> Standing:
        """Standing that may be claimed."""
        if self.failed:
            return Standing.NOT
        if self.judged < self.cases:
            return Standing.UNJUDGED
        if self.kept == self.cases:
            return Standing.CONFORMANT
        return Standing.PART if self.kept else Standing.UNSUPPORTED


_KEPT = (Outcome.PASSED, Outcome.ADVISORY)


def claims(results: Iterable[Result]) -> dict[tuple[str, str], list[Claim]]:
    """Per implementation and device, a claim for every feature of its operator, in the order of the features.

    Only results decide, so a result file gives the same claims.  Results of problems that are no case are left out.

    Parameters
    ----------
    results
        Results of any number of implementations and devices.

    Returns
    -------
    dict[tuple[str, str], list[Claim]]
        Claims by implementation and device.
    """
    known = asked_cases()
    groups: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        if result.case in known:
            groups[result.implementation, result.device].append(result)
    return {key: _claims(group) for key, group in groups.items()}


def _claims(results: list[Result]) -> list[Claim]:
    known = asked_cases()
    operator = known[results[0].case].operator
    dtypes = sorted({result.dtype for result in results})
    outcomes: dict[str, Counter[Outcome]] = defaultdict(Counter)
    at_kernel_sizes: Counter[str] = Counter()  # the envelope decides which of them are run
    for result in {(r.case, r.dtype): r for r in results}.values():
        feature = feature_of(known[result.case])
        outcomes[feature][result.outcome] += 1
        at_kernel_sizes[feature] += result.case not in every_case()
    found = []
    for name, of in FEATURES.items():
        cases = sum(len(dtypes_for(c, dtypes)) for op in of.operators if op == operator for c in cases_of(name, op))
        cases += at_kernel_sizes[name]
        cases -= outcomes[name].pop(Outcome.NOT_APPLICABLE, 0)
        if cases > 0:
            count = outcomes[name]
            kept, unsupported = _conforming(count), count[Outcome.UNSUPPORTED]
            failed = count.total() - kept - unsupported
            # An implementation that refuses every input refuses invalid ones too, which shows nothing.
            kept = 0 if name == VALIDATION and not _conforming(outcomes[CORE]) else kept
            found.append(Claim(name, cases, kept, unsupported, failed))
    return found


def _conforming(count: Counter[Outcome]) -> int:
    return sum(count[outcome] for outcome in _KEPT)
