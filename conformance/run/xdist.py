"""Spreading over processes (``-n``, pytest-xdist): the scheduling, and how the parts become one result file.

A worker judges its share and sends each result with the report of its test; at its end it sends what completes the
messages of its failures.  All cases of an implementation go to one worker, as a diagnosis looks at all of its failures.
The controlling process writes the result file and prints the tables, as a run in one process does.
"""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.conformance import results as result_file
from attention_conformance.conformance.judging.message import FailureText
from attention_conformance.conformance.judging.outcomes import Result
from attention_conformance.conformance.run.causes import Told
from attention_conformance.conformance.run.progress import Spent
from attention_conformance.conformance.run.run_checks import Conclusion, conclude
from attention_conformance.conformance.run.terminal import executed, print_report, told_by_cause
from attention_conformance.conformance.targets import Target, every_case_asked, left_out, only_quick

#: Name under which results travel with reports, and the rest with the end of a worker.
KEY = "attention-conformance"

#: Expected seconds of a test that judges no implementation, and of a scope that has a test marked ``slow`` (more if the
#: mark says so: ``slow(90)``).  Only the order of scopes depends on them.
SECONDS, SECONDS_SLOW = 0.005, 5.0

#: The implementation in a test's id: ``test_sdpa[torch-eager-cpu-float32-plain]``.
_TARGET = re.compile(r"::test_\w+\[(?P<name>.+?)-(?:cpu|cuda)-(?:float64|float32|float16|bfloat16)-")


def works(config: pytest.Config) -> bool:
    """Whether this process is one of those that the tests are spread over."""
    return hasattr(config, "workerinput")


def controls(config: pytest.Config) -> bool:
    """Whether this process spreads the tests over others.

    Parameters
    ----------
    config
        Pytest's configuration of the run.

    Returns
    -------
    bool
        True with ``-n``, outside its workers.
    """
    return not works(config) and config.getoption("dist", "no") != "no"


def scope(nodeid: str) -> str:
    """Scope that must run in one process: the cases of an implementation, the tests of a file."""
    found = _TARGET.search(nodeid)
    return found["name"] if found else nodeid.partition("::")[0]


def scheduler(config: pytest.Config, log: Any) -> Any:
    """Scheduler of pytest-xdist: tests of one scope stay together; scopes begin in the order of ``costly_first``."""
    from xdist.scheduler import LoadScopeScheduling

    class ByScope(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            return scope(nodeid)

    config.option.loadscopereorder = False  # the workers have ordered the tests by what this process cannot see
    return ByScope(config, log)


def costly_first(items: list[pytest.Item]) -> None:
    """Put the tests of the scopes that are expected to take longest first.

    Started last, one of them would keep one process busy while the others have nothing left to do.
    """
    seconds: dict[str, float] = defaultdict(float)
    for item in items:
        name, target = scope(item.nodeid), target_of(item)
        seconds[name] += SECONDS if target is None else target.implementation.case_seconds
        if (mark := item.get_closest_marker("slow")) is not None:
            seconds[name] = max(seconds[name], *mark.args, SECONDS_SLOW)

    def place(item: pytest.Item) -> tuple[float, str]:
        name = scope(item.nodeid)
        return -seconds[name], name

    items.sort(key=place)


def target_of(item: pytest.Item) -> Target | None:
    """Target that a test judges; None for a test of something else."""
    target = item.callspec.params.get("target") if hasattr(item, "callspec") else None
    return target if isinstance(target, Target) else None


@dataclass
class Sender:
    """A worker's side."""

    config: pytest.Config
    #: Makes the beginning of the result file, and the list of what is not installed, once there is a result.
    beginning: Callable[[], Mapping[str, Any]]
    _began: bool = False

    def send(self, report: pytest.TestReport, result: Result) -> None:
        """Send a result with the report of its test."""
        parcel: dict[str, Any] = {"result": result_file.as_record(result)}
        if not self._began:
            self._began = True
            parcel["beginning"] = self.beginning()
        report.user_properties.append((KEY, json.dumps(parcel)))

    def finish(
        self,
        order: Sequence[Sequence[str]],
        told: Mapping[str, Told],
        diagnoses: Sequence[Mapping[str, Any]],
        spent: Mapping[str, Spent],
    ) -> None:
        """Send what the end of the run adds.

        Parameters
        ----------
        order
            The keys of all results, in order.
        told
            Lines and size of failures by node id.
        diagnoses
            Diagnoses of the failures.
        spent
            Seconds that the results took, by implementation.
        """
        more = {node: {"lines": each.lines, "size": each.size} for node, each in told.items()}
        parcel: dict[str, Any] = {"order": order, "told": more, "diagnoses": list(diagnoses)}
        parcel["spent"] = {name: asdict(each) for name, each in spent.items()}
        self.config.workeroutput[KEY] = json.dumps(parcel)  # type: ignore[attr-defined]


@dataclass
class Gatherer:
    """The controlling process's side: a plugin that collects what the workers send."""

    config: pytest.Config
    results: list[Result] = field(default_factory=list)
    _beginning: dict[str, Any] = field(default_factory=dict)
    _conclusion: Conclusion = field(default_factory=Conclusion)
    _reports: dict[str, pytest.TestReport] = field(default_factory=dict)
    _results: dict[str, Result] = field(default_factory=dict)
    _told: dict[str, Told] = field(default_factory=dict)
    _diagnoses: list[dict[str, Any]] = field(default_factory=list)
    _order: list[tuple[str, ...]] = field(default_factory=list)
    _spent: dict[str, Spent] = field(default_factory=dict)
    _writer: result_file.Writer | None = None
    _started: float = field(default_factory=time.perf_counter)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the result that came with a report, and the report of a failure: its text is completed at the end."""
        for name, text in report.user_properties:
            if name == KEY:
                self._results[report.nodeid] = self._take(json.loads(str(text)))
        judged = report.when == "call" and _TARGET.search(report.nodeid)
        if report.failed and judged and isinstance(report.longrepr, str):
            self._reports[report.nodeid] = report
            report.longrepr = FailureText(report.longrepr)  # type: ignore[assignment]

    def _take(self, parcel: Mapping[str, Any]) -> Result:
        beginning = parcel.get("beginning")
        if beginning is not None and not self._beginning:
            self._beginning = beginning
            if self._path() is not None:
                self._writer = result_file.Writer(self._path(), beginning["header"])
        result = result_file.from_record(parcel["result"])
        self.results.append(result)
        if self._writer is not None:
            self._writer.write(result)
        return result

    def _path(self) -> Any:
        path = self.config.getoption("conformance_json")
        return Path(path) if path else None

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Keep what a worker sent at its end; one that died sent nothing."""
        text = getattr(node, "workeroutput", {}).get(KEY)
        if text is None:
            return
        parcel = json.loads(text)
        for nodeid, more in parcel["told"].items():
            if nodeid in self._results:
                self._told[nodeid] = Told(self._results[nodeid], tuple(more["lines"]), tuple(more["size"]))
        self._diagnoses += parcel["diagnoses"]
        self._spent |= {name: Spent(**each) for name, each in parcel["spent"].items()}
        self._order = [tuple(key) for key in parcel["order"]]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Complete the messages, and write the results again in the order of a run in one process."""
        for nodeid, report in self._reports.items():
            if nodeid in self._told:
                report.longrepr = FailureText(self._told[nodeid].message)  # type: ignore[assignment]
        place = {key: number for number, key in enumerate(self._order)}
        self.results.sort(key=lambda result: place.get(_key(result), len(place)))
        complete = bool(self._order) and len(self.results) == len(self._order)
        if self.results:
            implied, missing, hints = (self._beginning[key] for key in ("implied", "not_installed", "hints"))
            self._conclusion = conclude(
                self.results,
                implied,
                missing,
                self.config.getoption("require"),
                complete=complete,
                whole=every_case_asked(self.config),
                quick=only_quick(self.config),
                dtypes=self.config.getoption("dtype"),
                hints=hints,
            )
            if exitstatus == pytest.ExitCode.OK and (self._conclusion.failures or not executed(self.results)):
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if self._writer is not None:
            self._writer.close(complete=False)
            if complete:
                diagnoses = [each["record"] for each in self._diagnoses]
                result_file.rewrite(self._path(), self._beginning["header"], self.results, diagnoses)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> Any:
        """Print the failures by cause and the tables, after all that pytest prints."""
        with told_by_cause(terminalreporter, self._told):
            done = yield
        if self.results:
            print_report(
                terminalreporter,
                self.results,
                self._told,
                not_installed=self._beginning["not_installed"],
                adapters=self._beginning["adapters"],
                envelopes=self._beginning["envelopes"],
                diagnoses=[line for each in self._diagnoses for line in each["lines"]],
                conclusion=self._conclusion,
                spent=self._spent,
                seconds=time.perf_counter() - self._started,
                path=self.config.getoption("conformance_json"),
                left_out=left_out(self.config),
            )
        return done


def _key(result: Result) -> tuple[str, ...]:
    return (result.implementation, result.device, result.dtype, result.case)
