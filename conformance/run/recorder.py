"""Recorder of a run: plans the judging, keeps and writes the results, and completes the messages of failures."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from attention_conformance import conformance
from attention_conformance.conformance import results as result_file
from attention_conformance.conformance import targets
from attention_conformance.conformance.adapter import adapter_lines
from attention_conformance.conformance.cases import AnyCase
from attention_conformance.conformance.judging.message import FailureText
from attention_conformance.conformance.judging.outcomes import Outcome, Result
from attention_conformance.conformance.ledger.apply import apply
from attention_conformance.conformance.ledger.load import LEDGER, Ledger, check_records, read
from attention_conformance.conformance.run import first_calls, invariance, offsets, streams
from attention_conformance.conformance.run.causes import Told, to_read
from attention_conformance.conformance.run.parallel import Parallel
from attention_conformance.conformance.run.progress import EVERY, EVERY_TERMINAL, Progress
from attention_conformance.conformance.run.run_checks import (
    Adapters,
    Conclusion,
    check_adapters,
    conclude,
    envelope_lines,
)
from attention_conformance.conformance.run.terminal import executed, print_report, summary, told_by_cause
from attention_conformance.conformance.run.xdist import Sender, costly_first, target_of, works
from attention_conformance.conformance.run_case import Judged, judge_case
from attention_conformance.conformance.targets import QUICK, profile_key
from attention_conformance.impls.contract import Implementation

if TYPE_CHECKING:
    from attention_conformance.conformance.diagnosis.explain import Diagnosis

HERE = Path(conformance.__file__).resolve().parent

Key = tuple[targets.Target, AnyCase]

_LEDGER = pytest.StashKey[Ledger]()

#: Places of tests in the order of implementations, by node id; they run in another order.
PLACES = pytest.StashKey[dict[str, int]]()

#: Name of the time that is spent before the cases.
PROBING = "importing and probing"

#: A first table is printed if the rest is expected to take more than this many seconds.
WORTH_A_TABLE = 20.0


def is_quick(target: targets.Target | None) -> bool:
    """Whether a target, or a test of something else (None), runs before compiled and exported implementations."""
    return target is None or target.implementation.case_seconds < QUICK


def ledger_of(config: pytest.Config) -> Ledger:
    """The suite's records and those of ``--deviations FILE``, read once.

    Parameters
    ----------
    config
        Pytest's configuration of the run, which keeps what was read.

    Returns
    -------
    Ledger
        All records.

    Raises
    ------
    LedgerError
        For a file that cannot be used.
    """
    if _LEDGER not in config.stash:
        config.stash[_LEDGER] = read([LEDGER, *map(Path, config.getoption("deviations"))])
    return config.stash[_LEDGER]


def check_ledger(config: pytest.Config) -> None:
    """Check the records again, with the plug-ins that globs match.  Raises LedgerError if two cover one case."""
    records = ledger_of(config).deviations
    check_records(records, {target.implementation.name for target in targets.targets(config)})


def versions_of(ledger: Ledger, selection: targets.Selection) -> dict[str, str]:
    """Versions of the packages that took part, and of those that records about the judged implementations name.

    Parameters
    ----------
    ledger
        The records.
    selection
        Selection of the targets that are judged.

    Returns
    -------
    dict[str, str]
        Versions by the names of packages.
    """
    return {**ledger.installed({t.implementation.name for t in selection.targets}), **selection.versions}


def header(selection: targets.Selection, ledger: Ledger, adapters: Adapters) -> dict[str, Any]:
    """The header of the result file of a run.

    Parameters
    ----------
    selection
        The targets, and what is not installed.
    ledger
        The records with their files.
    adapters
        Findings about the adapters.

    Returns
    -------
    dict[str, Any]
        Fields by name, as JSON.
    """
    return {
        **result_file.fingerprint(),
        "versions": versions_of(ledger, selection),
        "ledgers": [dataclasses.asdict(source) for source in ledger.sources],
        "not_installed": sorted(selection.not_installed),
        "profiles": {profile_key(t.implementation.name, t.device, t.dtype): t.profile.value for t in selection.targets},
        **adapters.as_json(),
        **_envelopes_as_json(selection),
    }


class Recorder:
    """Collects the results of a run, writes them as they come, and sums up."""

    def __init__(self, config: pytest.Config) -> None:
        self.results: list[Result] = []
        self._config = config
        self._judged: dict[Key, Judged] = {}
        self._reports: dict[Key, pytest.TestReport] = {}
        self._diagnoses: list[Diagnosis] = []
        self._told: dict[str, Told] = {}
        self._judging: Parallel[Key, Judged] | None = None
        self._progress: Progress | None = None
        self._first = 0
        self._head: dict[str, Any] = {}
        self._writer: result_file.Writer | None = None
        self._order: list[tuple[str, ...]] = []
        self._nodes: dict[Key, str] = {}
        self._last: Result | None = None
        self._sender = Sender(config, self._beginning) if works(config) else None
        self._adapters = Adapters()
        self._conclusion = Conclusion()
        self._started = time.perf_counter()
        #: Seconds of work other than cases, by its name.
        self._besides: dict[str, float] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Plan the judging of the collected tests; a worker of pytest-xdist then sends them, costly ones first."""
        self._plan(session)
        if self._sender is not None:
            costly_first(session.items)

    def _plan(self, session: pytest.Session) -> None:
        """Plan the judging of the collected cases, and open the result file."""
        judged = [item for item in session.items if target_of(item) is not None]
        pairs = [item.callspec.params for item in judged]  # type: ignore[attr-defined]
        keys = [(p["target"], p["case"]) for p in pairs if "case" in p]  # the others are property tests
        if not pairs or self._config.getoption("collectonly"):
            return
        places = self._config.stash.get(PLACES, {})
        ordered = sorted(zip(judged, pairs, strict=True), key=lambda each: places.get(each[0].nodeid, 0))
        self._order = [_place(p["target"], _name(p)) for _, p in ordered]
        selection, pool, ledger = targets.selection(self._config), targets.pool(self._config), ledger_of(self._config)
        self._besides[PROBING] = targets.selected_within(self._config)
        versions = versions_of(ledger, selection)
        timeout = self._config.getoption("case_timeout")
        terminal = self._config.pluginmanager.getplugin("terminalreporter")
        every = EVERY_TERMINAL if terminal is not None and terminal.isatty else EVERY
        progress = self._progress = Progress((target for target, _ in keys), every)

        def compute(key: Key) -> Judged:
            target, case = key
            keywords = selection.keywords[target.implementation.name]
            with progress.judging(target, pool):
                return judge_case(target, case, pool, keywords, ledger, versions, timeout)

        # A worker of pytest-xdist has collected the others' cases too, and judges only its own.
        alone = self._config.getoption("in_process") or self._sender is not None
        parallel = 0 if alone else self._config.getoption("parallel")
        self._judging = Parallel(
            keys,
            lambda key: key[0].implementation.process,
            compute,
            parallel,
            seconds=lambda key: key[0].implementation.case_seconds,
        )
        slow = sum(key[0].implementation.case_seconds for key in keys if not is_quick(key[0]))
        self._first = sum(is_quick(key[0]) for key in keys) if slow > WORTH_A_TABLE else 0
        if not self._config.getoption("in_process"):  # a debugger sees only the calls of cases
            began = time.perf_counter()
            self._adapters = check_adapters(keys, selection, pool, timeout)
            self._besides[PROBING] = self._besides.get(PROBING, 0.0) + time.perf_counter() - began
        path = self._config.getoption("conformance_json")
        if path and self._sender is None:
            self._head = self._header()
            try:
                self._writer = result_file.Writer(Path(path), self._head)
            except OSError as error:
                raise pytest.UsageError(f"--conformance-json {path}: {error.strerror}") from None

    def result(self, target: targets.Target, case: AnyCase) -> Result:
        """Result of a case on a target, once it is judged."""
        assert self._judging is not None
        while not self._judging.wait((target, case), 1.0):
            self._tell_progress()
        judged = self._judged[target, case] = self._judging.get((target, case))
        self._tell_progress()
        return judged.result

    def against_ledger(self, result: Result, case: AnyCase) -> Result:
        """A result of several calls of ``case``, with the ledger applied."""
        ledger = ledger_of(self._config)
        return apply(ledger, result, case, versions_of(ledger, targets.selection(self._config)))

    def _tell_progress(self) -> None:
        """Print a line on the progress of the run from time to time."""
        line = self._progress.line() if self._progress is not None else None
        if line is not None:
            self._tell(line)

    def _tell(self, *lines: str) -> None:
        """Print lines between the tests; a worker of pytest-xdist has no terminal, and ``-qq`` wants none."""
        terminal = self._config.pluginmanager.getplugin("terminalreporter")
        if terminal is None or self._sender is not None or terminal.verbosity < -1:
            return
        capture = self._config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled() if capture is not None else nullcontext():
            if self._config.get_terminal_writer().width_of_current_line:
                terminal.write_line("")
            for line in lines:
                terminal.write_line(line)
            terminal.flush()

    def _tell_first(self) -> None:
        """Print the table of quick implementations, once they are judged and if the rest takes long."""
        still = {t.implementation.name: None for t in targets.targets(self._config) if not is_quick(t)}
        self._tell("so far:", summary(self.results, {}), f"still to come: {', '.join(still)}")

    def _header(self) -> dict[str, Any]:
        shard = self._config.getoption("shard")
        found = header(targets.selection(self._config), ledger_of(self._config), self._adapters)
        return found if shard is None else {**found, "shard": str(shard)}

    def record(self, result: Result) -> None:
        """Keep one result."""
        self.results.append(result)
        self._last = result
        if self._writer is not None:
            self._writer.write(result)
        if len(self.results) == self._first:
            self._tell_first()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        """Keep the reports of failed cases: their text is completed when all cases are judged."""
        report = yield
        key = _key(item)
        error = call.excinfo.value if call.excinfo else None
        if report.failed and isinstance(error, pytest.fail.Exception) and not error.pytrace and error.msg:
            report.longrepr = FailureText(error.msg)
        if call.when == "call" and self._last is not None:
            if self._sender is not None:
                self._sender.send(report, self._last)
            self._last = None
        if report.failed and call.when == "call" and key is not None and key in self._judged:
            self._reports[key] = report
            self._nodes[key] = item.nodeid
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Complete the messages, close the result file; a run in which nothing was executed fails."""
        if self._judging is not None:
            self._judging.stop()
            if exitstatus == pytest.ExitCode.INTERRUPTED and self._sender is None:
                self._keep_rest(self._judging)
        try:
            if self._reports and exitstatus != pytest.ExitCode.INTERRUPTED:
                began = time.perf_counter()
                try:
                    self._complete_messages()
                except KeyboardInterrupt:  # the results are reported without explanations
                    session.exitstatus = exitstatus = pytest.ExitCode.INTERRUPTED
                self._besides["diagnosis"] = time.perf_counter() - began
            if self._sender is not None:
                found = [{"record": each.as_json(), "lines": each.lines()} for each in self._diagnoses]
                spent = self._progress.spent if self._progress is not None else {}
                self._sender.finish(self._order, self._told, found, spent)
        finally:  # the results are kept even if their explanation fails
            diagnoses = [diagnosis.as_json() for diagnosis in self._diagnoses]
            if self._writer is not None:
                self._writer.close(complete=self._complete(), diagnoses=diagnoses)
            self._put_in_order(diagnoses)
        if self._ran_for_results() and self._sender is None:
            selection, require = targets.selection(self._config), self._config.getoption("require")
            missing, hints = selection.not_installed, self._adapters.hints
            self._conclusion = conclude(
                self.results,
                selection.implied,
                missing,
                require,
                complete=self._complete(),
                whole=targets.every_case_asked(self._config),
                quick=targets.only_quick(self._config),
                dtypes=self._config.getoption("dtype"),
                hints=hints,
            )
        failed = self._sender is None and (self._nothing_ran() or self._conclusion.failures)
        if failed and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _keep_rest(self, judging: Parallel[Key, Judged]) -> None:
        """Record results that were judged but not yet reported when the run was interrupted."""
        self._first = 0
        for key, judged in judging.computed().items():
            if key not in self._judged:
                self._judged[key] = judged
                self.record(judged.result)

    def _put_in_order(self, diagnoses: Sequence[dict[str, Any]]) -> None:
        """Put the results, and a complete file of them, in the order of implementations."""
        order = {key: number for number, key in enumerate(self._order)}
        ordered = sorted(self.results, key=lambda r: order.get((r.implementation, r.device, r.dtype, r.case), 0))
        if ordered != self.results:
            self.results = ordered
            if self._writer is not None and self._complete():
                result_file.rewrite(Path(self._config.getoption("conformance_json")), self._head, ordered, diagnoses)

    def _complete_messages(self) -> None:
        # only runs that fail pay for this import
        from attention_conformance.conformance.diagnosis.explain import Simplifier, explain, scripts

        selection, pool = targets.selection(self._config), targets.pool(self._config)
        timeout = self._config.getoption("case_timeout")
        lines, self._diagnoses = explain(self._judged, pool, selection.keywords, timeout)
        adapter = adapter_lines(self._adapters.findings, self._judged)
        said = {key: (*([adapter[key]] if key in adapter else []), *lines.get(key, [])) for key in self._reports}
        told = [(Told(self._judged[key].result, some, key[1].size), key) for key, some in said.items()]
        simplifier = Simplifier(pool, selection.keywords, selection.versions, timeout, self._diagnoses)
        folder = Path(self._config.getoption("scripts"))
        try:
            written = scripts(self._judged, selection.versions, folder, simplifier, to_read(told))
        except OSError as error:  # the folder cannot be written: the messages matter more than their scripts
            written = dict.fromkeys(said, f"Script:   not written: {error}")
        for (before, key), report in zip(told, self._reports.values(), strict=True):
            whole = dataclasses.replace(before, lines=(*before.lines, *([written[key]] if key in written else [])))
            self._told[self._nodes[key]] = whole
            report.longrepr = FailureText(whole.message)  # type: ignore[assignment]

    def _beginning(self) -> dict[str, Any]:
        """Record that a worker sends with its first result."""
        selection = targets.selection(self._config)
        return {
            "header": self._header(),
            "not_installed": {name: list(some) for name, some in selection.not_installed.items()},
            "implied": sorted(selection.implied),
            "adapters": self._adapters.lines(),
            "envelopes": _envelopes(targets.selection(self._config)),
            "hints": list(self._adapters.hints),
        }

    def _complete(self) -> bool:
        """Whether all that was planned has a result."""
        return len(self.results) == len(self._order)

    def _ran_for_results(self) -> bool:
        """Whether the run was meant to judge anything."""
        return targets.selected(self._config) and not self._config.getoption("collectonly")

    def _nothing_ran(self) -> bool:
        """Whether a run that was meant to judge judged nothing."""
        return self._ran_for_results() and bool(self.results or self._asked()) and not executed(self.results)

    def _asked(self) -> bool:
        """Whether the command line asks for conformance by name."""
        folder = self._config.invocation_params.dir
        named = [Path(folder, arg.partition("::")[0]).resolve() for arg in self._config.args]
        return any(path in (HERE, HERE / "test_conformance.py") for path in named)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> Any:
        """Print the failures by cause and the tables, after all that pytest prints."""
        with told_by_cause(terminalreporter, self._told):
            done = yield
        if self._ran_for_results() and (self.results or self._asked()):
            print_report(
                terminalreporter,
                self.results,
                self._told,
                not_installed=targets.selection(self._config).not_installed,
                adapters=self._adapters.lines(),
                envelopes=_envelopes(targets.selection(self._config)),
                diagnoses=[line for diagnosis in self._diagnoses for line in diagnosis.lines()],
                conclusion=self._conclusion,
                spent=self._progress.spent if self._progress is not None else {},
                seconds=time.perf_counter() - self._started,
                path=self._config.getoption("conformance_json") if self._writer is not None else None,
                besides=self._besides,
                left_out=targets.left_out(self._config),
            )
        return done


def _key(item: pytest.Item) -> Key | None:
    """Target and case of a test of the suite; other people's tests have arguments of these names, too."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    target, case = params.get("target"), params.get("case")
    return (target, case) if isinstance(target, targets.Target) and isinstance(case, AnyCase) else None


def _implementations(selection: targets.Selection) -> list[Implementation]:
    return list({t.implementation.name: t.implementation for t in selection.targets}.values())


def _envelopes(selection: targets.Selection) -> list[str]:
    return envelope_lines(_implementations(selection), selection.keywords)


def _envelopes_as_json(selection: targets.Selection) -> dict[str, Any]:
    """Envelopes for the header of the result file; nothing where every call is taken."""
    limited = [e for e in _implementations(selection) if not e.envelope.free or e.envelope.disagreements]
    lines = [
        {
            "implementation": each.name,
            "text": each.envelope.line(each.dtypes),
            "source": each.envelope.source,
            "refusals": list(each.envelope.refusals),
            **({"disagreements": list(each.envelope.disagreements)} if each.envelope.disagreements else {}),
        }
        for each in limited
    ]
    return {"envelopes": lines} if lines else {}


def _name(params: dict[str, Any]) -> str:
    """Name of the result of a test: the case's name, or that of a property, a question or first calls."""
    if "case" in params:
        return str(params["case"].name)
    if "question" in params:
        return f"{invariance.PREFIX}{params['question']}"
    if "in_stream" in params:
        return streams.NAME
    if "far" in params:
        return offsets.NAME
    return f"fuzz/{params['prop'].name}" if "prop" in params else first_calls.NAME


def _place(target: targets.Target, name: str) -> tuple[str, ...]:
    return (target.implementation.name, target.device, target.dtype, name)


def report(result: Result) -> None:
    """Turn a result into pytest's words: fail, skip, or xfail."""
    if result.outcome is Outcome.FAILED:
        pytest.fail(result.message, pytrace=False)
    if result.outcome in (Outcome.UNSUPPORTED, Outcome.NOT_APPLICABLE):
        pytest.skip(result.reason)
    if result.outcome in (Outcome.KNOWN_DEVIATION, Outcome.ADVISORY):
        pytest.xfail(result.reason)
