"""Checks of a whole run, in addition to its cases.

Before the cases: whether plugged-in functions are adapted right, and what works without being declared.  After them:
what fails the run whatever its cases' outcomes, keywords that are declared and refused, hints, claims and side effects.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attention_conformance.conformance.adapter import FIRST, Finding, check, probe, right, wider
from attention_conformance.conformance.cases import AnyCase, asked_cases
from attention_conformance.conformance.cases.base import case as sdpa_case
from attention_conformance.conformance.cases.data import random_bias, random_mask
from attention_conformance.conformance.judging.claims import SENTENCES, claim_lines, required, shortcomings, wrapped
from attention_conformance.conformance.judging.outcomes import EXECUTED, Outcome, Result
from attention_conformance.conformance.run.raised import limit_lines
from attention_conformance.conformance.run_case import LACKING
from attention_conformance.conformance.targets import Selection, Target
from attention_conformance.impls.contract import DTYPES, FIXED, Implementation
from attention_conformance.impls.operators import OPERATORS, SDPA
from attention_conformance.impls.process.pool import Crashed, Pool, TimedOut
from attention_conformance.impls.select import builtin


@dataclass(frozen=True)
class Adapters:
    """Findings about the adapters of plugged-in functions, from before they were judged."""

    #: Findings by implementation and device.
    findings: Mapping[tuple[str, str], Finding] = field(default_factory=dict)
    hints: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The findings in words, one a line."""
        return [f"{name} on {device}: {found.text}" for (name, device), found in self.findings.items()]

    def as_json(self) -> dict[str, Any]:
        """Fields of the result file's header; none where nothing was found."""
        plain = [{"implementation": n, "device": d, "text": f.text} for (n, d), f in self.findings.items()]
        return {"adapters": plain} if plain else {}


def check_adapters(
    keys: Sequence[tuple[Target, AnyCase]], selection: Selection, pool: Pool, timeout: float
) -> Adapters:
    """Check the adapters of plugged-in functions that are about to be judged; built-in implementations have none.

    Parameters
    ----------
    keys
        Targets and cases of the run.
    selection
        The keywords of each implementation.
    pool
        The processes to call them in.
    timeout
        Seconds for each call.

    Returns
    -------
    Adapters
        Findings by implementation and device, and hints.
    """
    groups: dict[tuple[str, str], dict[Target, None]] = defaultdict(dict)
    for target, _ in keys:
        if target.implementation.folder:
            groups[target.implementation.name, target.device][target] = None
    findings, hints = {}, []
    for (name, device), group in groups.items():
        targets = list(group)
        found = check(targets, selection.keywords[name], pool, timeout)
        if found is not None:
            findings[name, device] = found
        elif {target.dtype for target in targets} == set(targets[0].implementation.dtypes):
            hints += [f"{name} on {device}: {text}" for text in _undeclared(targets[0], selection, pool, timeout)]
    return Adapters(findings, tuple(hints))


def _undeclared(target: Target, selection: Selection, pool: Pool, timeout: float) -> Iterator[str]:
    """Sentences on what works without being declared."""
    works = undeclared_dtypes(target, pool, timeout)
    if works:
        undeclared = f"a tiny input is computed correctly in {', '.join(works)} too"
        yield f"{undeclared}, which it does not declare: add them to its dtypes to have them judged"
    declared = selection.keywords[target.implementation.name]
    for name, keyword in undeclared_keywords(target, declared, pool, timeout):
        yield f"its parameter {name} works as {keyword}: rename it to {keyword} to have it judged"


@dataclass(frozen=True)
class Conclusion:
    """Conclusion of a whole run, once all cases are judged."""

    #: Reasons why the run fails, whatever its cases' outcomes.
    failures: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    side_effects: tuple[str, ...] = ()
    #: Lines on implementations that were tested on few of the clauses that their signature promises.
    little: tuple[str, ...] = ()


def conclude(
    results: Sequence[Result],
    implied: Collection[str],
    not_installed: Mapping[str, Sequence[str]],
    require: Sequence[str],
    *,
    complete: bool,
    whole: bool = True,
    quick: bool = False,
    dtypes: Collection[str] = (),
    hints: Sequence[str] = (),
) -> Conclusion:
    """Conclusion from results; a run that was cut off says nothing about what is refused everywhere.

    Parameters
    ----------
    results
        Results of the run.
    implied
        Names of implementations whose keywords are only implied (targets.py).
    not_installed
        The missing packages by implementation.
    require
        Features that ``--require`` names.
    complete
        Whether the run was not cut off.
    whole
        False for a selection of cases, which says nothing about a feature: if all of its cases, or nearly all calls,
        are refused, that is only a hint then.
    quick
        True for the selection that shows every clause: an implementation that refuses all its valid calls fails.
    dtypes
        Values of ``--dtype``, which may leave out the only calls that give a keyword together with certain others.
    hints
        Further hints.

    Returns
    -------
    Conclusion
        Failures of the run as a whole, and the lines to print at its end.
    """
    everywhere = refused(results, dtypes) if complete else []
    told = [each for each in everywhere if each.implementation not in implied]
    failures = [each.line for each in told if whole and not each.in_part]
    failures += shortcomings(required(require), results, not_installed)
    refusing = refusing_lines(results) if complete else []
    broken = refusing if whole else refusing_lines(results, all_valid=True) if complete and quick else []
    failures += broken
    hints = [*hints, *(each.hint for each in everywhere if each.implementation in implied)]
    hints += limit_lines(results) if complete else []
    hints += [f"{each.line} of this selection" for each in told if not whole or each.in_part]
    hints += [line for line in refusing if line not in broken]
    return Conclusion(
        tuple(failures),
        _lines(f"hint: {hint}" for hint in hints),
        (*claim_lines(results), *_lines(clause_lines(results))),
        _lines(side_effect_lines(results)),
        _lines(little_lines(results)) if complete else (),
    )


def _lines(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(line for text in texts for line in wrapped(text))


#: Names of parameters in other libraries, and the keywords that they may mean; the first that fits counts.
NAMES = {
    "attn_mask": ("mask", "bias"),  # torch
    "attention_mask": ("mask", "bias"),  # transformers, keras layers
    "attn_bias": ("bias", "mask"),  # xformers
    "attention_bias": ("bias", "mask"),
    "causal": ("is_causal",),  # flash-attn
    "use_causal_mask": ("is_causal",),  # keras layers
    "softmax_scale": ("scale",),  # flash-attn
    "sm_scale": ("scale",),  # flashinfer, triton's tutorial
    "scaling": ("scale",),  # transformers
    "soft_cap": ("softcap",),
    "logits_soft_cap": ("softcap",),  # flashinfer
    "attn_logits_soft_cap": ("softcap",),  # keras
}

#: Values of keywords that show in the output.  Only one key in ten is masked, so that every row has a key.
SHOWING = {
    "mask": random_mask(0.9),
    "bias": random_bias(),
    "is_causal": True,
    "scale": 0.3,
    "softcap": 0.5,
}


def undeclared_dtypes(target: Target, pool: Pool, timeout: float) -> list[str]:
    """The dtypes that an implementation of sdpa does not declare, but in which it computes a tiny input right."""
    implementation = target.implementation
    if implementation.operator != SDPA.name:
        return []
    found = []
    for dtype in (dtype for dtype in DTYPES if dtype not in implementation.dtypes):
        other = Target(implementation, target.device, dtype)
        returned = probe(other, FIRST, pool, timeout)
        if returned is not None and right(returned, FIRST, other) and not wider(returned, other):
            found.append(dtype)
    return found


def undeclared_keywords(target: Target, declared: Collection[str], pool: Pool, timeout: float) -> list[tuple[str, str]]:
    """Parameters of a function of sdpa, each with the keyword that it implements, as a tiny input shows."""
    implementation = target.implementation
    if implementation.operator != SDPA.name or implementation.source or implementation.function_of:
        return []
    try:
        parameters = pool.call(
            implementation, "attention_conformance.impls.probe:others", implementation, timeout=timeout
        )
    except (Crashed, TimedOut):
        return []
    found = []
    for name in (name for name in parameters if name in NAMES):
        fits = (k for k in NAMES[name] if k not in declared and _computes(target, k, name, pool, timeout))
        found += [(name, keyword) for keyword in (next(fits, None),) if keyword]
    return found


def _computes(target: Target, keyword: str, name: str, pool: Pool, timeout: float) -> bool:
    """Whether a parameter does on a tiny input what a keyword must do."""
    case = sdpa_case(f"adapter-{keyword}", "SDPA-1", FIRST.why, FIRST.shape, **{keyword: SHOWING[keyword]})
    returned = probe(target, case, pool, timeout, {keyword: name})
    return returned is not None and right(returned, case, target)


def envelope_lines(implementations: Iterable[Implementation], keywords: Mapping[str, Collection[str]]) -> list[str]:
    """The envelopes of implementations that do not take every call, a line each, with the probe's refused calls.

    Differences between what is declared and the probe's calls are below the line.

    Parameters
    ----------
    implementations
        Implementations of the run.
    keywords
        Keywords that each accepts, by its name.

    Returns
    -------
    list[str]
        Lines without line breaks.
    """
    lines = []
    for each in implementations:
        envelope = each.envelope
        if envelope.free and not (envelope.source and envelope.refusals) and not envelope.disagreements:
            continue
        lacking = [name for name in OPERATORS[each.operator].keywords if name not in keywords[each.name]]
        source = envelope.source or "not known"
        lines.append(f"{each.name} ({source}): {envelope.line(each.dtypes, lacking)}")
        lines += [f"  {text}" for text in envelope.disagreements]
        lines += [f"  refused: {text}" for text in envelope.refusals[:SHOWN]]
    return lines


#: Most refusals of a probe that are shown.
SHOWN = 4

#: A run fails if an implementation refuses more than this share of the calls that its signature promises, given at
#: least this many such calls: something is broken.  The built-in that refuses most refuses 0.85 (ort-gqa, a decoder's
#: operator of one layout).
REFUSED_SHARE, REFUSED_LEAST = 0.9, 20

#: Beginnings of the reasons of calls that an implementation never promised to take: a keyword that its signature lacks,
#: and another value of an option than the one that a model holds.
UNPROMISED = (LACKING, FIXED)


def refusing_lines(results: Iterable[Result], *, all_valid: bool = False) -> list[str]:
    """Lines on implementations that refused nearly every call that their signature promises, with the commonest reason.

    With ``all_valid`` only on those that refused every valid call: that they refuse invalid ones too shows nothing.
    """
    known = asked_cases()
    groups: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        if not result.reason.startswith(UNPROMISED) and result.outcome is not Outcome.NOT_APPLICABLE:
            groups[result.implementation, result.device].append(result)
    lines = []
    for (name, device), group in groups.items():
        reasons = Counter(r.reason for r in group if r.outcome is Outcome.UNSUPPORTED)
        ran = [r for r in group if r.outcome is not Outcome.UNSUPPORTED]
        if all_valid and not all(r.case in known and known[r.case].invalid for r in ran):
            continue
        if len(group) >= REFUSED_LEAST and reasons.total() > REFUSED_SHARE * len(group):
            (reason, many), *_ = reasons.most_common(1)
            told = f"{name} on {device} refused {reasons.total()} of {len(group)} calls that its signature promises"
            lines.append(f"{told}, {many} with {reason!r}")
    return lines


@dataclass(frozen=True)
class _Clauses:
    """Clauses that the signature of an implementation promises: those that were tested, and why others were not."""

    tested: tuple[str, ...]
    #: Clauses by reason.
    others: Mapping[str, tuple[str, ...]]

    @property
    def promised(self) -> int:
        return len(self.tested) + sum(map(len, self.others.values()))


def _clauses(results: Iterable[Result]) -> dict[tuple[str, str], _Clauses]:
    known = asked_cases()
    tested: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    reasons: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for result in results:
        if result.case not in known or result.reason.startswith(LACKING):
            continue
        key = result.implementation, result.device
        if result.outcome in EXECUTED:
            tested[key][result.clauses[0]] = None
        else:
            reasons[key].setdefault(result.clauses[0], result.reason)
    found = {}
    for key in {**tested, **reasons}:
        others: dict[str, list[str]] = defaultdict(list)
        for clause, reason in reasons[key].items():
            if clause not in tested[key]:
                others[reason].append(clause)
        found[key] = _Clauses(tuple(tested[key]), {reason: tuple(some) for reason, some in others.items()})
    return found


def clause_lines(results: Sequence[Result]) -> list[str]:
    """Lines on implementations with an envelope: how many clauses were tested, and why others were not."""
    limited = {(r.implementation, r.device) for r in results if r.sizes or r.outcome is Outcome.NOT_APPLICABLE}
    if len({(r.implementation, r.device) for r in results}) > SENTENCES:
        return []
    lines = []
    for (name, device), found in _clauses(results).items():
        if (name, device) in limited:
            others = "; ".join(f"{', '.join(some)} ({reason})" for reason, some in found.others.items())
            told = f"{name} on {device}: {len(found.tested)} of {found.promised} clauses of its signature tested"
            lines.append(f"{told}; not {others}" if others else told)
    return lines


def little_lines(results: Iterable[Result]) -> list[str]:
    """Lines on implementations that were tested on less than half of the clauses that their signature promises."""
    return [
        f"only {len(found.tested)} of the {found.promised} clauses that the signature of {name} promises could be"
        f" tested on {device}"
        for (name, device), found in _clauses(results).items()
        if 2 * len(found.tested) < found.promised
    ]


#: Keywords that no call gives without another one.
TOGETHER = {"past_key": "past_value", "block_mask": "block_size", "rotary_cos": "rotary_sin"}


@dataclass(frozen=True)
class Refused:
    """A keyword that an implementation declares, and refuses in all its cases.

    A case that needs the keyword may be refused for another reason, such as its shape or another keyword.  So the
    keyword is blamed only if a call ran that leaves it out and differs in nothing else.
    """

    implementation: str
    keyword: str
    #: Number of cases that need it.
    cases: int
    #: Whether ``--dtype`` leaves out cases that give it together with other keywords than these cases do.
    in_part: bool = False

    @property
    def line(self) -> str:
        """Line for the terminal."""
        return f"{self.implementation}: feature {self.keyword} is declared and refused in {self._all}"

    @property
    def hint(self) -> str:
        """Hint for an implementation that does not name its keywords, so that it declared nothing."""
        implied = "which **kwargs or the differentiated function implies"
        return f"{self.implementation}: feature {self.keyword}, {implied}, is refused in {self._all}"

    @property
    def _all(self) -> str:
        return f"all {self.cases} cases that need it" if self.cases > 1 else "the one case that needs it"


def refused(results: Iterable[Result], dtypes: Collection[str] = ()) -> list[Refused]:
    """The keywords that implementations declare and refuse everywhere, while calls without them run.

    Keywords that a built-in is known to refuse on a device are left out there.  With ``dtypes``, the only ones of the
    run, a keyword may be taken in a form of which they have no case.
    """
    known = asked_cases()
    groups: dict[str, list[tuple[AnyCase, Result]]] = defaultdict(list)
    for result in results:
        if result.case in known and not result.reason.startswith(UNPROMISED):
            groups[result.implementation].append((known[result.case], result))
    return [each for name, group in groups.items() for each in _refused_by(name, group, dtypes)]


def _refused_by(name: str, group: Collection[tuple[AnyCase, Result]], dtypes: Collection[str]) -> list[Refused]:
    ran = {(_call(case, case.keywords), r.device, r.dtype) for case, r in group if r.outcome in EXECUTED}
    by_keyword: Mapping[str, list[tuple[AnyCase, Result]]] = defaultdict(list)
    for case, result in group:
        for keyword in case.keywords:
            by_keyword[keyword].append((case, result))
    found = []
    told = builtin()[name].refuses if name in builtin() else {}
    for keyword, all_uses in by_keyword.items():
        uses = [(case, r) for case, r in all_uses if keyword not in told.get(r.device, ())]
        if keyword in TOGETHER.values() or any(r.outcome is not Outcome.UNSUPPORTED for _, r in uses):
            continue
        removed = {keyword, TOGETHER.get(keyword, keyword)}
        if any((_call(case, case.keywords - removed), r.device, r.dtype) in ran for case, r in uses):
            in_part = any(keyword in form for form in _left_out([case for case, _ in group], dtypes))
            found.append(Refused(name, keyword, len({case.name for case, _ in uses}), in_part))
    return found


def _left_out(cases: Sequence[AnyCase], dtypes: Collection[str]) -> set[frozenset[str]]:
    """Keywords that an implementation accepts and that only cases without a case in ``dtypes`` give together."""
    accepted = frozenset(keyword for case in cases for keyword in case.keywords)
    operators = {case.operator for case in cases}
    others = [c for c in asked_cases().values() if c.operator in operators and not set(c.dtypes) & set(dtypes)]
    return {_form(each) for each in others if dtypes and each.keywords <= accepted} - {_form(case) for case in cases}


def _form(case: AnyCase) -> frozenset[str]:
    """The keywords that a case gives together, without requests for further results."""
    return frozenset(keyword for keyword in case.keywords if not keyword.startswith("return_"))


def _call(case: AnyCase, keywords: Collection[str]) -> tuple[Any, ...]:
    """Features that a refusal may depend on: two cases with equal ones differ only in the numbers."""
    return case.operator, case.shape, case.memory, case.invalid, frozenset(keywords)


def side_effect_lines(results: Iterable[Result]) -> list[str]:
    """Side effects of calls, which fail nothing: printing, warnings, changed variables, kept memory.

    One line for each kind, implementation and device: in how many cases, and the first of them.
    """
    found: dict[tuple[str, str, str], list[tuple[Result, str]]] = defaultdict(list)
    for result in results:
        for effect in result.side_effects:
            kind, _, what = effect.partition(": ")
            found[result.implementation, result.device, kind].append((result, what))
    lines = []
    for (name, device, kind), group in found.items():
        first, what = group[0]
        many = f"in {len(group)} cases, first" if len(group) > 1 else "in one case,"
        lines.append(f"side effect: {name} on {device}: {kind} {many} {first.case} in {first.dtype}: {what}")
    return lines
