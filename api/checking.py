"""``check``: judge a function from Python, and report the results.

It does for a function object, in a notebook, a script, or a loop that writes kernels, what
``attention-conformance check`` does for files and names.
"""

from __future__ import annotations

import contextlib
import functools
import html
import inspect
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attention_conformance.conformance.adapter import adapter_lines
from attention_conformance.conformance.cases import AnyCase
from attention_conformance.conformance.judging.claims import claim_lines, required
from attention_conformance.conformance.judging.features import claims
from attention_conformance.conformance.judging.outcomes import EXECUTED, Outcome, Result, is_case
from attention_conformance.conformance.ledger.apply import apply
from attention_conformance.conformance.ledger.load import LEDGER, Ledger, read
from attention_conformance.conformance.plugin import asked_in_streams, cases_for, chosen_cases
from attention_conformance.conformance.results import parse
from attention_conformance.conformance.results.file import Writer
from attention_conformance.conformance.run import offsets, streams
from attention_conformance.conformance.run.causes import Cause, Told, causes, to_read
from attention_conformance.conformance.run.invariance import PREFIX
from attention_conformance.conformance.run.invariance import judge as judge_question
from attention_conformance.conformance.run.invariance_questions import questions
from attention_conformance.conformance.run.recorder import header, versions_of
from attention_conformance.conformance.run.run_checks import Adapters, check_adapters, conclude, envelope_lines
from attention_conformance.conformance.run_case import Judged, judge_case
from attention_conformance.conformance.targets import DEVICES, Selection, Target, examine, refuse_unknown
from attention_conformance.impls.contract import DTYPES, Function, ImplementationError
from attention_conformance.impls.given import given
from attention_conformance.impls.process import limits
from attention_conformance.impls.process.pool import Pool

if TYPE_CHECKING:
    import pandas as pd

#: Seconds for one case, compilation included.
TIMEOUT = 300.0

#: Causes of failure that a report shows by itself, with the whole message of the smallest failure of each.
SHOWN = 3

#: Where all failures are.
ALL_IN = "report.failures"


@dataclass(frozen=True)
class FailedCase:
    """A case that a function fails, or in which it does not follow a SHOULD.

    Attributes
    ----------
    clause
        The clause that is broken, as ``SDPA-9``; "" where none can be named.
    case, dtype, device
        What failed.  Other than cases: ``stream/order``, ``offsets/beyond-32-bits``, ``invariance/…``.
    kind
        Kind of the failure: ``value``, ``shape``, ``dtype``, ``error``, ``crashed``, …
    reason
        What is wrong, in one line.
    message
        The whole message: clause, inputs, worst element, where the wrong elements are, diagnosis.
    diagnosis
        The known mistakes that the failure looks like, one a line; () where nothing fits.
    """

    clause: str
    case: str
    dtype: str
    device: str
    kind: str
    reason: str
    message: str
    diagnosis: tuple[str, ...] = ()
    _script: Callable[[], str] = field(default=lambda: "", repr=False, compare=False)

    @property
    def script(self) -> str:
        """A script that needs only NumPy and the framework, and fails as the case does.

        It imports the function from its file, so it is "" for a function that is not at the top level of a file.
        """
        return self._script()

    def to_dict(self) -> dict[str, Any]:
        """All but the script as plain data that JSON can hold."""
        public = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return {**public, "diagnosis": list(self.diagnosis)}


@dataclass(frozen=True)
class Report:
    """Results of a check: every case of a function, and the verdict.

    Attributes
    ----------
    name
        Name of the function.
    results
        One for each case, dtype and device, and for each check other than cases.
    failures
        Those that failed, the smallest inputs first.
    reasons
        Why the function is not right, apart from its failures: a required feature is lacking, nothing was executed.
    envelope
        The calls that it takes, in one line; "" where it takes every call that its signature promises.
    features
        The function's standing for each feature, by device: ``conformant``, ``not``, ``in part``, ``unsupported``.
    hints
        Declarations that may be meant otherwise, and findings about arguments and results.
    diagnosis
        Explanations of the failures, best first.
    seconds
        How long it took.
    advisories
        The SHOULDs that are not followed, with their messages; they fail nothing.
    """

    name: str
    results: tuple[Result, ...]
    failures: tuple[FailedCase, ...]
    reasons: tuple[str, ...]
    envelope: str
    features: Mapping[str, Mapping[str, str]]
    hints: tuple[str, ...]
    diagnosis: tuple[str, ...]
    seconds: float
    header: Mapping[str, Any] = field(repr=False)
    _diagnoses: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    _told: tuple[Told, ...] = field(default=(), repr=False)
    advisories: tuple[FailedCase, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing failed, something was executed, and all that is required is there."""
        return not self.failures and not self.reasons

    @property
    def counts(self) -> dict[str, int]:
        """Number of results of each outcome."""
        found = Counter(result.outcome for result in self.results)
        return {outcome.value: found[outcome] for outcome in Outcome if found[outcome]}

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        found = causes(self._told)
        told = [part for cause in found[:SHOWN] for part in ("", *self._messages(cause))]
        more = sum(len(cause.failures) for cause in found[SHOWN:])
        rest = ["", f"… and {more} more failure{'s' * (more > 1)}: {ALL_IN}"] if more else []
        rest += [part for each in self._shown_advisories for part in ("", each.message)]
        return "\n".join([*self._top(), *told, *rest])

    __repr__ = __str__

    def _messages(self, cause: Cause) -> list[str]:
        """The message of a cause: its smallest failures in full, the others a line each."""
        messages = [_rerun(told.message, self.name, told.result) for told in cause.in_full]
        return ["\n\n".join(messages), *cause.others(all_in=ALL_IN)]

    @property
    def _shown_advisories(self) -> list[FailedCase]:
        """The advisories whose messages are shown: for cases the number is enough."""
        return [each for each in self.advisories if not is_case(each.case)]

    def _verdict(self) -> str:
        counts = ", ".join(f"{number} {name}" for name, number in self.counts.items())
        return f"{self.name}: {'ok' if self.ok else 'NOT OK'} ({counts or 'no results'}) in {self.seconds:.1f} s"

    def _top(self) -> list[str]:
        """All lines but those of single failures."""
        envelope = [self.envelope] if self.envelope else []
        return [self._verdict(), *self.reasons, *envelope, *claim_lines(self.results), *self.hints, *self.diagnosis]

    def _repr_html_(self) -> str:
        """The report as a notebook shows it: the verdict, and the failures by cause, folded."""
        first, *rest = self._top()
        color = "#1a7f37" if self.ok else "#cf222e"
        parts = [f'<div style="font-family: monospace"><b style="color: {color}">{html.escape(first)}</b>']
        parts += [f"<div>{html.escape(line)}</div>" for line in rest]
        for cause in causes(self._told):
            shown = len(cause.in_full)
            inside = [self._pre(told) for told in cause.in_full]
            for told in cause.failures[shown:]:
                result = told.result
                line = f"{result.broken or '–'} · {result.case} · {result.dtype} on {result.device}: {result.reason}"
                inside.append(_folded(line, self._pre(told)))
            parts.append(_folded(f"{cause.first.result.broken or '–'} · {cause.sentence}", "".join(inside)))
        for each in self._shown_advisories:
            parts.append(_folded(f"{each.clause} · {each.case}: {each.reason}", _preformatted(each.message)))
        return "".join([*parts, "</div>"])

    def _pre(self, told: Told) -> str:
        """A whole message in HTML."""
        return _preformatted(_rerun(told.message, self.name, told.result))

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data that JSON can hold."""
        return {
            "name": self.name,
            "ok": self.ok,
            "seconds": self.seconds,
            "reasons": list(self.reasons),
            "envelope": self.envelope,
            "features": {device: dict(found) for device, found in self.features.items()},
            "hints": list(self.hints),
            "diagnosis": list(self.diagnosis),
            "counts": self.counts,
            "failures": [failed.to_dict() for failed in self.failures],
            "advisories": [each.to_dict() for each in self.advisories],
            "header": dict(self.header),
            "results": [parse.as_record(result) for result in self.results],
        }

    def to_json(self) -> str:
        """``to_dict`` as JSON."""
        return json.dumps(self.to_dict(), allow_nan=False)

    def to_pandas(self) -> pd.DataFrame:
        """One row for each result.  Raises ModuleNotFoundError without pandas."""
        import pandas as pd

        rows = [parse.as_record(result) for result in self.results]
        return pd.DataFrame([{**row, "share": _number(row.get("share"))} for row in rows])

    def write(self, path: str | Path) -> None:
        """Write a result file, as ``--conformance-json`` does, for ``attention-conformance report`` and ``compare``.

        Parameters
        ----------
        path
            Path of the new file, JSON lines.
        """
        with Writer(Path(path), self.header) as writer:
            for result in self.results:
                writer.write(result)
            writer.close(diagnoses=self._diagnoses)


def _preformatted(message: str) -> str:
    return f'<pre style="white-space: pre-wrap">{html.escape(message)}</pre>'


def _folded(line: str, inside: str) -> str:
    """HTML that is folded under its line."""
    return f"<details><summary>{html.escape(line)}</summary>{inside}</details>"


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def check(
    function: Function,
    *,
    framework: str | None = None,
    operator: str = "sdpa",
    dtypes: Sequence[str] = (),
    devices: Sequence[str] = (),
    cases: Sequence[str] = (),
    require: Sequence[str] = (),
    deviations: Sequence[str | Path] = (),
    invariance: bool = False,
    isolated: bool = True,
    timeout: float = TIMEOUT,
) -> Report:
    """Judge a function on every case that it takes and, where they apply, on the order in its stream and its offsets.

    Parameters
    ----------
    function
        ``f(q, k, v, *, …)`` over arrays (B, H, S, D) that returns the output, as in impls/PLUGINS.md.  The keywords
        that it accepts are the features that it is judged on.  Its attributes (``dtypes``, ``head_widths``, ``layout``,
        …) say what else it takes.
    framework
        Framework whose arrays it takes: ``numpy``, ``torch`` or ``jax``; or the language of its kernels, ``triton`` or
        ``pallas``, which are interpreted where there is no device.  By default what its annotations and the
        modules that it names say.
    operator
        ``sdpa``, ``mha``, ``sublayer``, ``sdpa_grad``, ``mha_grad``, ``varlen``, ``varlen_grad``, ``paged``,
        ``merge``, ``merge_grad`` or ``latent``.
    dtypes, devices
        Dtypes and devices to judge; by default all that the function declares, and all that are found.
    cases
        Names of cases or globs; by default all.
    require
        Features that it must have, or ``all``.
    deviations
        Files of known deviations.
    invariance
        Also check whether a sequence and a row have the same bits in every call that has them (SDPA-40 …).
    isolated
        Call the function in a process of its own, to which it is pickled: a crash, a hang, or use of more than four
        fifths of the memory is the outcome of one case.  Otherwise it is called in this process, where a debugger sees
        it: nothing is caught, only its declarations say which calls it takes, as nothing is probed, and neither
        streams nor offsets are tested.
    timeout
        Seconds for one case, compilation included.

    Returns
    -------
    Report
        Returned whatever the function does; ``report.ok`` is the verdict.

    Raises
    ------
    ImplementationError
        In one sentence, for a function that cannot be called as the operator or sent to a process, or a misspelt name.
    LedgerError
        For a file of deviations that cannot be used.
    """
    started = time.perf_counter()
    dtypes, devices, deviations = as_list(dtypes), as_list(devices), as_list(deviations)
    names = required(as_list(require), "require=")
    chosen = chosen_cases(as_list(cases), "cases=")
    refuse_unknown("dtypes=", dtypes, DTYPES)
    refuse_unknown("devices=", devices, DEVICES)
    with suite(
        function, framework, operator, dtypes, devices, deviations, isolated=isolated, timeout=timeout
    ) as judging:
        judged = {(t, c): judging.judge(t, c) for t in judging.selection.targets for c in cases_for(t, chosen)}
        more = [] if cases or not isolated else judging.judge_streams_and_offsets()
        more += judging.judge_invariance() if invariance else []
        return judging.report(judged, names, started, whole=not cases, more=more)


def as_list(given: str | Path | Sequence[Any]) -> list[Any]:
    """Names that a keyword of a public function was given; one name need not be in a list.

    Parameters
    ----------
    given
        One or several names or paths.

    Returns
    -------
    list
        The names.
    """
    return [given] if isinstance(given, str | Path) else list(given)


Key = tuple[Target, AnyCase]


@dataclass(frozen=True)
class Suite:
    """A function that is being judged: its targets and the process that it runs in."""

    name: str
    function: Function
    selection: Selection
    pool: Pool
    ledger: Ledger
    timeout: float

    def judge(self, target: Target, case: AnyCase) -> Judged:
        """Result of a case.

        Parameters
        ----------
        target
            The function on a device in a dtype.
        case
            The case.

        Returns
        -------
        Judged
            The result, with the reply that explains its failure.
        """
        keywords = self.selection.keywords[self.name]
        return judge_case(target, case, self.pool, keywords, self.ledger, self.versions, self.timeout)

    def judge_streams_and_offsets(self) -> list[Result]:
        """Results of the checks of streams and offsets (SDPA-45, SDPA-46), for the targets that they apply to.

        Returns
        -------
        list[Result]
            Empty for a function on the CPU that is no kernel.
        """
        targets, keywords = self.selection.targets, self.selection.keywords
        found = []
        for target, cases in asked_in_streams(targets, keywords):
            result = streams.judge(target, cases, self.pool, self.timeout)
            found.append(apply(self.ledger, result, cases[0], self.versions))
        return found + [offsets.judge(t, keywords[self.name], self.pool, self.timeout) for t in offsets.asked(targets)]

    def judge_invariance(self) -> list[Result]:
        """Results of the questions of invariance.

        Returns
        -------
        list[Result]
            One for each target and question of its operator.
        """
        keywords = self.selection.keywords[self.name]
        asked_of = [(t, each) for t in self.selection.targets for each in questions(t.implementation.operator)]
        return [judge_question(t, each, self.pool, keywords, self.timeout) for t, each in asked_of]

    @functools.cached_property
    def versions(self) -> dict[str, str]:
        """Versions of the packages that take part, and of those that known deviations name."""
        return versions_of(self.ledger, self.selection)

    def explained(
        self, judged: Mapping[Key, Judged], adapters: Adapters
    ) -> tuple[list[FailedCase], list[Told], list[Any]]:
        """The failures with all that can be said about them, the smallest first, and what explains them together.

        Parameters
        ----------
        judged
            Results by target and case.
        adapters
            Findings of the checks before the first case.

        Returns
        -------
        tuple[list[FailedCase], list[Told], list[Any]]
            Failures, their explanations, and the diagnoses for the result file.
        """
        # only runs that fail pay for this import
        from attention_conformance.conformance.diagnosis.explain import Simplifier, explain

        lines, diagnoses = explain(judged, self.pool, self.selection.keywords, self.timeout)
        simplifier = Simplifier(self.pool, self.selection.keywords, self.versions, self.timeout, diagnoses)
        adapter = adapter_lines(adapters.findings, judged)
        found = []
        for key in sorted(judged, key=lambda key: key[1].size):
            target, case = key
            result = judged[key].result
            if result.outcome is not Outcome.FAILED:
                continue
            more = (*([adapter[key]] if key in adapter else []), *lines.get(key, []))
            found.append((Told(result, more, case.size), key))
        read = () if self.pool.in_process else to_read(found)  # called here, an exception would end the check
        failed = []
        for told, key in found:
            target, case = key
            result, written = told.result, (judged[key], case)
            if key in read and _file_of(self.function):
                with contextlib.suppress(NotImplementedError, ValueError):  # a call that cannot be written as a script
                    written = simplifier(target, case, judged[key])
            script = functools.partial(_script, self.function, *written, target, self.versions)
            failed.append(replace(self.failed_case(told), _script=script))
        return failed, [told for told, _ in found], diagnoses

    def failed_case(self, told: Told) -> FailedCase:
        """A failure, or an advisory, as a report has it, without its script.

        Parameters
        ----------
        told
            The result with everything that its message says.

        Returns
        -------
        FailedCase
            The failure, with a message that names the call of ``check`` that shows it again.
        """
        result = told.result
        return FailedCase(
            clause=result.broken or "",
            case=result.case,
            dtype=result.dtype,
            device=result.device,
            kind=result.failure.value if result.failure else "",
            reason=result.reason,
            message=_rerun(told.message, self.name, result),
            diagnosis=told.lines,
        )

    def report(
        self,
        judged: Mapping[Key, Judged],
        require: Sequence[str],
        started: float,
        *,
        whole: bool = True,
        more: Sequence[Result] = (),
    ) -> Report:
        """The report of all that was judged since ``started``, by the clock of ``time.perf_counter``.

        Parameters
        ----------
        judged
            Results by target and case.
        require
            Features that the function must conform to.
        started
            When the check began, by the clock of ``time.perf_counter``, in seconds.
        whole
            Whether no case was left out.
        more
            Results other than those of cases.

        Returns
        -------
        Report
            The report.
        """
        results = (*(one.result for one in judged.values()), *more)
        adapters = Adapters()
        if not self.pool.in_process:
            adapters = check_adapters(list(judged), self.selection, self.pool, self.timeout)
        failures, told, diagnoses = self.explained(judged, adapters)
        besides = [Told(result) for result in more if result.outcome is Outcome.FAILED]
        advisories = [Told(result) for result in results if result.outcome is Outcome.ADVISORY]
        said = conclude(results, self.selection.implied, {}, require, complete=True, whole=whole, hints=adapters.hints)
        executed = any(result.outcome in EXECUTED for result in results)
        nothing = () if executed else ("nothing was executed, so nothing is known",)
        implementations = {target.implementation.name: target.implementation for target, _ in judged}
        return Report(
            name=self.name,
            results=results,
            failures=(*failures, *map(self.failed_case, besides)),
            reasons=(*said.failures, *nothing),
            envelope="\n".join(envelope_lines(implementations.values(), self.selection.keywords)),
            features=_features(results),
            hints=(*adapters.lines(), *said.little, *said.hints, *said.side_effects),
            diagnosis=tuple(line for diagnosis in diagnoses for line in diagnosis.lines()),
            seconds=time.perf_counter() - started,
            header=header(self.selection, self.ledger, adapters),
            _diagnoses=tuple(diagnosis.as_json() for diagnosis in diagnoses),
            _told=(*told, *besides),
            advisories=tuple(map(self.failed_case, advisories)),
        )


@contextmanager
def suite(
    function: Function,
    framework: str | None,
    operator: str,
    dtypes: Sequence[str],
    devices: Sequence[str],
    deviations: Sequence[str | Path],
    *,
    isolated: bool,
    timeout: float,
) -> Iterator[Suite]:
    """A function made ready to be judged; its process ends with the context.

    Parameters
    ----------
    function
        The function that is judged.
    framework
        Framework whose arrays it takes; None to find out.
    operator
        Operator, such as "sdpa".
    dtypes
        Dtypes to judge; none for all that it has.
    devices
        Devices to judge on; none for all that are found.
    deviations
        Ledgers of known deviations.
    isolated
        Whether it runs in a process of its own.
    timeout
        Seconds for one case.

    Yields
    ------
    Suite
        The suite that judges it.

    Raises
    ------
    ImplementationError
        As ``check`` does.
    """
    pool = Pool(not isolated, limits.default())
    with given(function, framework, operator, isolated=isolated) as implementation:
        try:
            selection = examine([implementation], devices, dtypes, pool, probe=isolated)
            if implementation.name in selection.not_installed:
                lacking = ", ".join(selection.not_installed[implementation.name])
                raise ImplementationError(f"{implementation.name} needs {lacking}, which is not installed")
            ledger = read([LEDGER, *map(Path, deviations)])
            yield Suite(implementation.name, function, selection, pool, ledger, timeout)
        finally:
            pool.close()


def _features(results: Sequence[Result]) -> dict[str, dict[str, str]]:
    found = claims(results).items()
    return {device: {claim.feature: claim.standing.value for claim in group} for (_, device), group in found}


def _rerun(message: str, name: str, result: Result) -> str:
    """The message with a rerun line in Python instead of the command's."""
    head, separator, _ = message.rpartition("\nRerun: ")
    which = f'cases=["{result.case}"], ' if result.of_case else ""
    invariance = ", invariance=True" if result.case.startswith(PREFIX) else ""
    device = "" if result.device == "cpu" else f', devices=["{result.device}"]'
    call = f'check({name}, {which}dtypes=["{result.dtype}"]{device}{invariance})'
    return f"{head}{separator}   {call}" if separator else message


def _file_of(function: Function) -> Path | None:
    """The file that has a function at its top level."""
    try:
        file = inspect.getsourcefile(function)
    except TypeError:
        return None
    named = getattr(function, "__qualname__", "").isidentifier()
    return Path(file) if named and file is not None and Path(file).is_file() else None


def _script(function: Function, judged: Judged, case: AnyCase, target: Target, versions: Mapping[str, str]) -> str:
    """The standalone script of a failure, "" for a function that is not at the top level of a file."""
    from attention_conformance.conformance.repro import text, wrong_elements

    file = _file_of(function)
    if file is None:
        return ""
    place = f"{file.resolve()}:{function.__qualname__}"
    implementation = replace(target.implementation, target=place, folder=str(file.parent))
    there = replace(target, implementation=implementation)
    try:
        return text(judged.result, there, case, wrong_elements(judged, case, target), versions)
    except (NotImplementedError, ValueError):  # a call that cannot be written as a script
        return ""
