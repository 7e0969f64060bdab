"""Explanation of failures, once every case is judged: the stage that went wrong, and the likely mistake.

Nothing here decides whether a case passes.  Failures are explained implementation by implementation, because the
explanation that fits most of them is the one to read first.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attention_conformance.conformance.bounds import sdpa as bounds
from attention_conformance.conformance.cases import AnyCase, Case
from attention_conformance.conformance.diagnosis.common_features import common_features_line
from attention_conformance.conformance.diagnosis.explanation import Explanation, Passed
from attention_conformance.conformance.diagnosis.match import diagnose
from attention_conformance.conformance.diagnosis.stage_errors import stage_errors, stage_lines
from attention_conformance.conformance.diagnosis.unnamed import Words
from attention_conformance.conformance.faults.registry import cited
from attention_conformance.conformance.faults.trials import Failed
from attention_conformance.conformance.judging.compare import compare
from attention_conformance.conformance.judging.judge import judge
from attention_conformance.conformance.judging.outcomes import Failure, Outcome
from attention_conformance.conformance.ledger.load import Ledger
from attention_conformance.conformance.repro import write, wrong_elements
from attention_conformance.conformance.repro.simpler import Fits, for_script
from attention_conformance.conformance.run_case import Judged, ask, judge_case, request
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.calls import Reply, same_bits
from attention_conformance.impls.process.pool import Crashed, Pool, TimedOut

#: Most failures of an implementation that are called a second time, for their weights and lse.
CALLED_AGAIN = 200

#: Most unexplained failures that are run alone in a fresh process.
RUN_ALONE = 3

#: Most scripts that are written for an implementation.
SCRIPTS = 200

#: Most threads that are named with an explanation.
NAMED = 2

#: Equal calls of a failed case before its failure is said to come from other calls: results of a race differ in some.
REPEATED = 20

STAYS_BEHIND = (
    f"the case passes by itself in a fresh process, {REPEATED} times:"
    " an earlier call left something behind, or it changes from call to call (SDPA-29)"
)
DIFFERS = "run again by itself, the result is different: it changes from call to call (SDPA-29)"
OTHER_PATH = "the output of that call is right, so it takes another path"
UNSTEADY = (
    "the output of that call is right, and the first call's is not given again: it changes from call to call (SDPA-29)"
)


@dataclass(frozen=True)
class Examined:
    """A result with its target and case."""

    target: Target
    case: AnyCase
    judged: Judged

    @property
    def key(self) -> tuple[Target, AnyCase]:
        """Key that identifies it in a run."""
        return self.target, self.case


@dataclass(frozen=True)
class Diagnosis:
    """Explanations of the failures of one implementation on one device, best first."""

    implementation: str
    device: str
    failures: int
    explanations: tuple[Explanation, ...]
    #: Features that the unexplained failures have in common, in words.
    common_features: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The explanations in words, one a line."""
        name = f"{self.implementation} on {self.device}"
        texts = [*(explanation_text(e, self.failures) for e in self.explanations), *self.common_features]
        return [f"{name}: {text}" for text in texts]

    def as_json(self) -> dict[str, Any]:
        """The same as plain data, for the result file."""
        return {
            "implementation": self.implementation,
            "device": self.device,
            "failures": self.failures,
            "explanations": [
                {
                    "faults": list(e.names),
                    "title": e.title,
                    "cases": sorted({f.case.name for f in e.fits}),
                    "contradicted": e.contradicted,
                }
                for e in self.explanations
            ],
            "common_features": list(self.common_features),
        }


@dataclass(frozen=True)
class Simplifier:
    """Simpler inputs for scripts of a run that fail from the same cause, found by calling the target again."""

    pool: Pool
    #: Keywords that are accepted, by implementation.
    keywords: Mapping[str, frozenset[str]]
    versions: Mapping[str, str]
    timeout: float | None
    #: Diagnoses of the failures, if they are known already; None to diagnose each one.
    diagnoses: Sequence[Diagnosis] | None = None

    def __call__(self, target: Target, case: AnyCase, judged: Judged) -> tuple[Judged, AnyCase]:
        """A result and a case for a script: simpler ones, or the given ones.

        Parameters
        ----------
        target
            The target that failed.
        case
            The case that failed.
        judged
            Result and reply of the case.

        Returns
        -------
        tuple of Judged and AnyCase
            The result of ``repro.simpler.for_script``, which raises for a call that cannot be written as a script.
        """
        name = target.implementation.name

        def judge(one: AnyCase) -> Judged:
            return judge_case(target, one, self.pool, self.keywords[name], Ledger(), self.versions, self.timeout)

        return for_script(
            judged, case, target, self.versions, judge, lambda: self._fits(Examined(target, case, judged))
        )

    def _fits(self, each: Examined) -> Fits | None:
        """Function that checks whether a failure's explanation fits others of its target; None without explanation."""
        target, failed = each.target, _failed(each)
        if failed is None:
            return None
        if self.diagnoses is None:
            found = [e for e in diagnose([failed], [], pairs=False) if failed in e.fits]
        else:
            own = (target.implementation.name, target.device)
            some = [e for d in self.diagnoses if (d.implementation, d.device) == own for e in d.explanations]
            found = [e for e in some if any((f.case, f.dtype) == (each.case, target.dtype) for f in e.fits)]
        found = [e for e in found if not any(fault.make is Words for fault in e.faults)]  # Words gives no numbers
        if not found:
            return None

        def fits(case: AnyCase, judged: Judged) -> bool:
            other = _failed(Examined(target, case, judged))
            return other is not None and found[0].fit(other)

        return fits


def explain(
    judged: Mapping[tuple[Target, AnyCase], Judged],
    pool: Pool,
    keywords: Mapping[str, frozenset[str]],
    timeout: float | None,
) -> tuple[dict[tuple[Target, AnyCase], list[str]], list[Diagnosis]]:
    """More lines for the message of each failure, by target and case, and the diagnosis of each implementation.

    Parameters
    ----------
    judged
        Every result of a run, passed ones too: an explanation must agree with them.
    pool
        Processes in which failed cases are called again, for their weights and lse.
    keywords
        Keywords that each implementation accepts, by its name.
    timeout
        Seconds of a call; None for no limit.

    Returns
    -------
    tuple[dict[tuple[Target, AnyCase], list[str]], list[Diagnosis]]
        Lines of the failures that have some, and a diagnosis of each implementation and device that failed.
    """
    groups: dict[tuple[str, str], list[Examined]] = defaultdict(list)
    for (target, case), one in judged.items():
        groups[target.implementation.name, target.device].append(Examined(target, case, one))
    lines: dict[tuple[Target, AnyCase], list[str]] = defaultdict(list)
    found = []
    for (name, device), group in groups.items():
        failed = [e for e in group if e.judged.result.outcome is Outcome.FAILED]
        if not failed:
            continue
        for each in sorted(failed, key=lambda e: e.case.size)[:CALLED_AGAIN]:
            lines[each.key] += _stages(each, pool, keywords[name], timeout)
        known = {e.key: wrong for e in failed if (wrong := _failed(e)) is not None}
        diagnosis = _diagnosis(name, device, tuple(known.values()), group)
        for key, one_failed in known.items():
            lines[key] += _explained(one_failed, diagnosis)
        if not diagnosis.explanations:
            unsteady = any(e.judged.result.failure is Failure.UNREPEATABLE for e in failed)
            for each in sorted(failed, key=lambda e: e.case.size)[:RUN_ALONE]:
                lines[each.key] += _alone(each, pool.memory, timeout, unsteady)
        found.append(diagnosis)
    return dict(lines), found


def scripts(
    judged: Mapping[tuple[Target, AnyCase], Judged],
    versions: Mapping[str, str],
    folder: Path,
    simplifier: Simplifier,
    read: Collection[tuple[Target, AnyCase]],
) -> dict[tuple[Target, AnyCase], str]:
    """Write a standalone script for each failure, the smallest first; return a line with each path, by target and case.

    The scripts of the failures in ``read``, one of each cause, get simpler inputs where they are long.
    """
    written: dict[tuple[Target, AnyCase], str] = {}
    count: Counter[str] = Counter()
    for (target, case), one in sorted(judged.items(), key=lambda item: item[0][1].size):
        result, name = one.result, target.implementation.name
        if result.outcome is not Outcome.FAILED or result.failure is Failure.STALE:
            continue
        count[name] += 1
        if count[name] > SCRIPTS:
            written[target, case] = f"Script:   run this case by itself (a run writes the {SCRIPTS} smallest)"
            continue
        with contextlib.suppress(NotImplementedError, ValueError):  # a call that cannot be written as a script
            shown, simple = simplifier(target, case, one) if (target, case) in read else (one, case)
            elements = wrong_elements(shown, simple, target)
            path = write(shown.result, target, simple, elements, versions, folder)
            written[target, case] = f"Script:   {path}"
    return written


def explanation_text(explanation: Explanation, failures: int) -> str:
    """An explanation in words: how many failures it fits, what it is, and where it happened before."""
    threads = cited(explanation.sources[:NAMED])
    what = f"{explanation.title}{f' (as in {threads})' if threads else ''}"
    equal = not any(fault.make is Words for fault in explanation.faults)
    return in_words(what, len(explanation.fits), failures, explanation.contradicted, equal=equal)


def in_words(what: str, fits: int, failures: int, contradicted: int = 0, *, equal: bool = True) -> str:
    """A cause in words: how many failures it fits, what it is, and how many passed cases do not show it.

    Parameters
    ----------
    what
        The title of the cause.
    fits, failures
        Number of failures that it fits, and of all failures.
    contradicted
        Passed cases that would fail with it.
    equal
        Whether a mistake gives exactly these results; otherwise only the title describes them.

    Returns
    -------
    str
        A sentence without a full stop.
    """
    many = "this failure" if failures == 1 else f"{fits} of {failures} failures"
    many += (" equals" if 1 in (fits, failures) else " equal") if equal else ":"
    if not contradicted:
        return f"{many} {what}"
    return f"{many} {what}; {contradicted} passed case{' does' if contradicted == 1 else 's do'} not show it"


def _diagnosis(name: str, device: str, known: Sequence[Failed], group: Iterable[Examined]) -> Diagnosis:
    passed = [
        Passed(e.case, e.target.dtype, e.target.profile) for e in group if e.judged.result.outcome is Outcome.PASSED
    ]
    explanations = tuple(diagnose(known, passed))
    explained = frozenset[Failed]().union(*(e.fits for e in explanations))
    left: dict[Failure, list[tuple[AnyCase, str]]] = defaultdict(list)
    for each in known:
        if each not in explained:
            left[each.failure].append((each.case, each.dtype))
    kept = [(each.case, each.dtype) for each in passed]
    common_features = (
        common_features_line(kind, some, kept) for kind, some in sorted(left.items(), key=lambda item: -len(item[1]))
    )
    return Diagnosis(name, device, len(known), explanations, tuple(filter(None, common_features)))


def _failed(each: Examined) -> Failed | None:
    result, reply = each.judged.result, each.judged.reply
    if reply is None or result.failure in (None, Failure.STALE):
        return None
    return Failed(each.case, each.target.dtype, each.target.profile, result.failure, reply)


def _explained(known: Failed, diagnosis: Diagnosis) -> list[str]:
    for explanation in diagnosis.explanations:
        if known in explanation.fits:
            return [f"Diagnosis: {explanation_text(explanation, diagnosis.failures)}"]
    return []


def _stages(each: Examined, pool: Pool, keywords: frozenset[str], timeout: float | None) -> list[str]:
    """The stage that went wrong, from the weights and lse that the call, or a second one, returns."""
    reply = each.judged.reply
    case, dtype, profile = each.case, each.target.dtype, each.target.profile
    if reply is None or each.judged.result.failure is not Failure.VALUE or not isinstance(case, Case):
        return []
    extra = {f"return_{n}": True for n in ("weights", "lse") if f"return_{n}" in keywords}
    note = ""
    if not extra.keys() <= case.options.keys() and extra:
        asked = request(case, dtype, each.target.device)
        try:
            again = ask(each.target, replace(asked, keywords={**asked.keywords, **extra}), pool, timeout)
        except (Crashed, TimedOut):
            return []
        if again.status != "returned" or "output" not in again.results:
            return []
        note = f" (from a second call, with {' and '.join(extra)})"
        if _output_ok(again, each) and not _output_ok(reply, each):
            try:
                plain = ask(each.target, replace(asked, repeats=REPEATED), pool, timeout)
            except (Crashed, TimedOut):
                return []
            steady = not plain.unequal and all(same_bits(reply.results[n], a) for n, a in plain.results.items())
            note += f"; {OTHER_PATH if steady else UNSTEADY}"
        reply = again
    expected = case.expected(dtype)
    if any(a.shape != getattr(expected, n).shape for n, a in reply.results.items()):
        return []
    limit = case.bound(dtype, profile)
    found = stage_errors(reply.results, expected, limit, bounds.Options.of(case.inputs(dtype).keywords), dtype, profile)
    return stage_lines(found, reply.results, expected, note)


def _output_ok(reply: Reply, each: Examined) -> bool:
    """Whether the output of a reply is right, whatever else it returns."""
    case, dtype = each.case, each.target.dtype
    got, expected = reply.results["output"], case.expected(dtype).output
    limit = case.bound(dtype, each.target.profile).output
    return got.shape == expected.shape and compare("output", got, expected, limit, dtype).ok


def _alone(each: Examined, memory: int | None, timeout: float | None, unsteady: bool) -> list[str]:
    """Lines on a failure that is run again by itself, several times in a fresh process.

    Where equal calls of any case are ``unsteady``, that it passes there does not say that an earlier call is to blame.
    """
    result, reply = each.judged.result, each.judged.reply
    if reply is None or reply.status != "returned" or result.failure is Failure.STALE:
        return []
    pool = Pool(in_process=False, memory=memory)
    try:
        asked = request(each.case, each.target.dtype, each.target.device)
        again = ask(each.target, replace(asked, repeats=REPEATED), pool, timeout)
    except (Crashed, TimedOut):
        return []
    finally:
        pool.close()
    blank = replace(result, outcome=Outcome.PASSED, failure=None, broken=None, reason="", message="")
    passes = judge(again, each.case, blank).outcome is Outcome.PASSED
    if passes and not unsteady:
        return [f"Diagnosis: {STAYS_BEHIND}"]
    if (
        passes
        or again.unequal
        or again.status != reply.status
        or any(not same_bits(reply.results[n], a) for n, a in again.results.items())
    ):
        return [f"Diagnosis: {DIFFERS}"]
    return []
