"""Search for an example that breaks a property on a target: N examples from a seed, the first failure shrunk."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis import strategies as st
from hypothesis.errors import Flaky, Unsatisfiable, UnsatisfiedAssumption

from attention_conformance.conformance.bounds.sdpa import UNIT_ROUNDOFF
from attention_conformance.conformance.cases import AnyCase, Case
from attention_conformance.conformance.judging.compare import compare
from attention_conformance.conformance.judging.message import inputs_line, rerun, share_text
from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.properties.inside import problem_within
from attention_conformance.conformance.properties.problem import Problem
from attention_conformance.conformance.properties.properties import AS_DRAWN, Property, agrees_with_reference
from attention_conformance.conformance.properties.serving import ServingProblem
from attention_conformance.conformance.properties.trial import Answer, Context, Tally, Trial, Wrong
from attention_conformance.conformance.spec.clauses import clauses

#: Crashes of one property after which the search ends with its smallest example: each one costs a new process.
CRASHES = 20


# The message of a failure.


def failure_message(
    result: Result,
    sentence: str,
    case: AnyCase,
    calls: Sequence[Answer],
    details: Sequence[str],
    again: str,
    paste: str,
) -> str:
    """The whole message; ``case`` is the shrunk problem's, ``paste`` its line or "" if it does not fail by itself."""
    kind = result.failure.value if result.failure else ""
    name = result.case.partition("/")[2]
    lines = [f"{result.implementation} on {result.device} in {result.dtype}, property {name}: wrong by {kind}"]
    if result.broken in clauses():
        clause = clauses()[result.broken]
        lines.append(f"{clause.id} · {clause.title} ({clause.level.value}): {clause.sentence}")
    lines.append(f"Property: {sentence}")
    lines.append(f"Problem:  {case.name}: {inputs_line(case, result.dtype)}")
    heads = ["Calls:   ", *["         "] * (len(calls) - 1)]
    lines += [f"{head} {against_reference(answer)}" for head, answer in zip(heads, calls, strict=True)]
    lines += details
    lines.append(f"Rerun:    {again}")
    if paste:
        lines += ["Paste:    into a file of conformance/cases, as a case that fails in the same implementation:", paste]
    else:
        lines.append(
            "Paste:    nothing: the problem by itself is computed right; only the calls together show the mistake"
        )
    return "\n".join(lines)


def against_reference(answer: Answer) -> str:
    """A call, and how far it is from its own reference: "its keys reversed: 0.2 of the bound from the reference"."""
    if not answer.results:
        return f"{answer.what}: {answer.reply.status}"
    share = max(
        compare(name, each.value, each.exact, each.bound, _holding_dtype(name, answer)).share
        for name, each in answer.results.items()
    )
    return f"{answer.what}: {share_text(share)} the bound away from its reference"


def _holding_dtype(name: str, answer: Answer) -> str:
    """A dtype that holds the result, whose range decides what may overflow."""
    dtype = str(answer.reply.results[name].dtype)
    return dtype if dtype in UNIT_ROUNDOFF else "float64"


def paste_line(problem: Problem | ServingProblem, clause: str, dtype: str) -> str:
    """The line that makes the problem a named case, in the one dtype that it failed in."""
    source = problem.source(clause, "Found by a property test.").removesuffix(")")
    case = problem.case()
    first = getattr(case.make_expected(case.make_inputs(dtype)), case.results()[0])
    zeros = "" if first.any() else ", zeros=True"
    return f"{source}, dtypes={(dtype,)!r}{zeros})"


# The search.


class Stop(BaseException):
    """Ends a property at once, without more shrinking; hypothesis lets it pass."""


@dataclass(frozen=True)
class Setting:
    """Setting of the command line: how many examples, from which seed."""

    examples: int
    seed: int
    #: Look for the smallest problem that fails; otherwise the first one found is reported.
    shrink: bool = True


def fuzz(prop: Property, context: Context, setting: Setting) -> Result:
    """The result of one property on one target.  Never raises for what the implementation does."""
    target = context.target
    blank = Result(
        target.implementation.name,
        target.device,
        target.dtype,
        f"fuzz/{prop.name}",
        (prop.clause,),
        Outcome.PASSED,
        profile=context.profile.value,
    )
    lacking = sorted(prop.needs - context.keywords)
    if lacking:
        return replace(blank, outcome=Outcome.UNSUPPORTED, reason=f"no keyword {', '.join(lacking)}")
    tally = Tally()
    wrong = _search(prop, context, setting, tally)
    blank = replace(blank, run_seconds=tally.run_seconds, prepare_seconds=tally.prepare_seconds)
    if wrong is not None:
        return _failed(blank, prop, context, setting, wrong)
    if tally.excused:
        first = next(record for record in context.records if record.id in tally.excused)
        reason = f"only where the ledger says so [{', '.join(sorted(tally.excused))}]"
        return replace(
            blank, outcome=Outcome.KNOWN_DEVIATION, failure=first.failure, broken=first.clause, reason=reason
        )
    if not tally.examined:
        reason = next(iter(tally.unsupported), "no example applies")
        return replace(blank, outcome=Outcome.UNSUPPORTED, reason=reason)
    return replace(blank, reason=f"{tally.examined} examples")


def _failed(blank: Result, prop: Property, context: Context, setting: Setting, wrong: Wrong) -> Result:
    finding, dtype = wrong.finding, blank.dtype
    result = replace(
        blank,
        outcome=Outcome.FAILED,
        failure=finding.failure,
        broken=finding.broken or prop.clause,
        reason=finding.reason,
        error_pattern=finding.error_pattern,
    )
    paste = paste_line(wrong.problem, prop.clause, dtype) if _fails_alone(context, wrong) else ""
    name = result.case.partition("/")[2]
    again = rerun(result, f"-k 'test_fuzz and {name}' --fuzz {setting.examples} --fuzz-seed {setting.seed}")
    message = failure_message(result, prop.sentence, wrong.problem.case(), wrong.calls, finding.details, again, paste)
    return replace(result, message=message)


def _fails_alone(context: Context, wrong: Wrong) -> bool:
    """Whether the shrunk problem, as a case, fails too; a hang is not waited for again."""
    if wrong.finding.failure is Failure.TIMEOUT:
        return wrong.calls[-1].what == AS_DRAWN
    try:
        agrees_with_reference.check(Trial(context, wrong.problem, _draws_nothing, Tally()))
    except Wrong:
        return True
    except UnsatisfiedAssumption:
        pass
    return False


def _draws_nothing(strategy: object) -> NoReturn:
    raise AssertionError("the agreement with the reference draws nothing beside the problem")


def seed_of(prop: Property, setting: Setting) -> int:
    """The property's own seed, the same for every target, so that all targets get the same problems."""
    return zlib.crc32(f"{setting.seed} {prop.name}".encode())


def _search(prop: Property, context: Context, setting: Setting, tally: Tally) -> Wrong | None:
    """The shrunk failure, if one is found."""
    space = prop.problems(context.keywords, context.few)
    failures: list[Wrong] = []

    def example(data: st.DataObject) -> None:
        problem = problem_within(data.draw(space), context.target.implementation.envelope)
        if problem is None:
            hypothesis.reject()
        trial = Trial(context, problem, data.draw, tally)
        try:
            prop.check(trial)
        except Wrong as wrong:
            failures.append(wrong)
            _end_costly(failures)
            raise
        tally.examined += 1

    settings = hypothesis.settings(
        max_examples=setting.examples,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink) if setting.shrink else (Phase.generate,),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
        print_blob=False,
    )
    run = hypothesis.seed(seed_of(prop, setting))(settings(hypothesis.given(st.data())(example)))
    try:
        run()
    except Wrong as wrong:
        return wrong
    except Stop:
        return min(failures, key=_size)
    except Flaky:
        return _unrepeatable(min(failures, key=_size))
    except Unsatisfiable:
        pass
    return None


def _end_costly(failures: list[Wrong]) -> None:
    """Stop after a hang or a lack of memory, which are not repeated, or after CRASHES crashes."""
    kinds = [wrong.finding.failure for wrong in failures]
    if kinds[-1] in (Failure.TIMEOUT, Failure.MEMORY) or kinds.count(Failure.CRASHED) >= CRASHES:
        raise Stop


def _size(wrong: Wrong) -> int:
    return len(wrong.problem.source())


def _unrepeatable(wrong: Wrong) -> Wrong:
    """The same inputs failed once and passed another time (SDPA-29)."""
    reason = f"failed once and passed when it was repeated: {wrong.finding.reason}"
    details = (*wrong.finding.details, "Repeated: the same inputs passed when run again")
    broken = Case.blame.unrepeatable
    finding = replace(wrong.finding, failure=Failure.UNREPEATABLE, broken=broken, reason=reason, details=details)
    return Wrong(finding, wrong.problem, wrong.calls)
