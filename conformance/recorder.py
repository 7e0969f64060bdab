"""The recorder of a run: plans the judging, keeps and writes the results, and completes the messages of failures."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import conformance
from conformance import results as result_file
from conformance import targets
from conformance.ahead import Ahead
from conformance.cases import AnyCase
from conformance.deviations import Ledger
from conformance.examine import Diagnosis, examine, scripts
from conformance.failure_text import FailureText, shorten
from conformance.judge import Judged, judge
from conformance.ledger import of_run
from conformance.message import with_lines
from conformance.outcomes import Outcome, Result
from conformance.summary import executed, summary, time_lines

HERE = Path(conformance.__file__).resolve().parent

Key = tuple[targets.Target, AnyCase]


class Recorder:
    """Collects the results of a run, writes them as they come, and sums up."""

    def __init__(self, config: pytest.Config) -> None:
        self.results: list[Result] = []
        self._config = config
        self._judged: dict[Key, Judged] = {}
        self._reports: dict[Key, pytest.TestReport] = {}
        self._diagnoses: list[Diagnosis] = []
        self._ahead: Ahead[Key, Judged] | None = None
        self._writer: result_file.Writer | None = None
        self._planned = 0
        self._started = time.perf_counter()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Plan the judging of the collected cases, and open the result file."""
        pairs = [item.callspec.params for item in session.items if hasattr(item, "callspec")]
        pairs = [p for p in pairs if isinstance(p.get("target"), targets.Target)]
        keys = [(p["target"], p["case"]) for p in pairs if "case" in p]  # the others are property tests
        if not pairs or self._config.getoption("collectonly"):
            return
        self._planned = len(pairs)
        selection, pool, ledger = targets.selection(self._config), targets.pool(self._config), self._ledger()
        versions = of_run.versions(ledger, selection)
        timeout = self._config.getoption("case_timeout")

        def compute(key: Key) -> Judged:
            target, case = key
            keywords = selection.keywords[target.implementation.name]
            return judge(target, case, pool, keywords, ledger, versions, timeout)

        parallel = 0 if self._config.getoption("in_process") else self._config.getoption("parallel")
        self._ahead = Ahead(keys, lambda key: key[0].implementation.process, compute, parallel)
        path = self._config.getoption("conformance_json")
        if path:
            self._writer = result_file.Writer(Path(path), self._header())

    def result(self, target: targets.Target, case: AnyCase) -> Result:
        """What becomes of a case on a target, once it is judged."""
        assert self._ahead is not None
        judged = self._judged[target, case] = self._ahead.get((target, case))
        return judged.result

    def _ledger(self) -> Ledger:
        return of_run.ledger(self._config)

    def _header(self) -> dict[str, Any]:
        selection = targets.selection(self._config)
        return {
            **result_file.fingerprint(),
            "versions": of_run.versions(self._ledger(), selection),
            "ledgers": of_run.as_json(self._ledger()),
            "not_installed": sorted(selection.not_installed),
            "profiles": {
                f"{t.implementation.name}/{t.dtype}": t.implementation.profile(t.dtype).value for t in selection.targets
            },
        }

    def record(self, result: Result) -> None:
        """Keep one result."""
        self.results.append(result)
        if self._writer is not None:
            self._writer.write(result)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        """Keep the reports of failed cases: their text is completed when all cases are judged."""
        report = yield
        params = item.callspec.params if hasattr(item, "callspec") else {}
        key = (params.get("target"), params.get("case"))
        shorten(report, call)
        if report.failed and call.when == "call" and key in self._judged:
            self._reports[key] = report
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Complete the messages, close the result file; a run in which nothing was executed fails."""
        if self._ahead is not None:
            self._ahead.stop()
        try:
            if self._reports and exitstatus != pytest.ExitCode.INTERRUPTED:
                self._complete_messages()
        finally:  # what was judged is not lost with what is said of it
            if self._writer is not None:
                diagnoses = [diagnosis.as_json() for diagnosis in self._diagnoses]
                self._writer.close(complete=len(self.results) == self._planned, diagnoses=diagnoses)
        if self._nothing_ran() and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _complete_messages(self) -> None:
        selection, pool = targets.selection(self._config), targets.pool(self._config)
        timeout = self._config.getoption("case_timeout")
        lines, self._diagnoses = examine(self._judged, pool, selection.keywords, timeout)
        written = scripts(self._judged, selection.versions, Path(self._config.getoption("scripts")))
        for key, report in self._reports.items():
            more = [*lines.get(key, []), *([written[key]] if key in written else [])]
            text = FailureText(with_lines(self._judged[key].result.message, more))
            report.longrepr = text  # type: ignore[assignment]

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

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the table, and what explains the failures."""
        if not self._ran_for_results() or not (self.results or self._asked()):
            return
        write = terminalreporter
        lines = [line for diagnosis in self._diagnoses for line in diagnosis.lines()]
        if lines:
            write.section("diagnosis")
            write.line("\n".join(lines))
        write.section("conformance")
        write.line(summary(self.results, targets.selection(self._config).not_installed))
        if self.results:
            write.line(time_lines(self.results, time.perf_counter() - self._started))
        if self._writer is not None:
            write.line(f"results: {self._config.getoption('conformance_json')}")
        if self._nothing_ran():
            write.line("FAILED: nothing was executed, so nothing is known", red=True)


def report(result: Result) -> None:
    """Turn a result into pytest's words: fail, skip, or xfail."""
    if result.outcome is Outcome.FAILED:
        pytest.fail(result.message, pytrace=False)
    if result.outcome is Outcome.UNSUPPORTED:
        pytest.skip(result.reason)
    if result.outcome in (Outcome.DEVIATES, Outcome.ADVISED):
        pytest.xfail(result.reason)
