"""``parametrize``: the cases of the suite as tests in the user's own pytest suite."""

from __future__ import annotations

import atexit
import functools
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from attention_conformance.checking import TIMEOUT, Suite, as_list, suite
from attention_conformance.conformance.cases import AnyCase, asked_cases
from attention_conformance.conformance.cases.fit import fit
from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.conformance.plugin import cases_for, chosen_cases
from attention_conformance.conformance.run.run_checks import Adapters
from attention_conformance.conformance.targets import DEVICES, Target, refuse_unknown
from attention_conformance.impls.backend import backend
from attention_conformance.impls.contract import DTYPES, Framework, Function, Implementation, ImplementationError
from attention_conformance.impls.frameworks import arrays_of, framework_of, name_of
from attention_conformance.impls.loading import as_called, attributes_of, keywords, nearest, operator_of
from attention_conformance.impls.select import with_attributes

#: Name of the argument of a test.
ARGUMENT = "check"


@dataclass(frozen=True)
class Check:
    """One case on a function, in a dtype, on a device: a test calls it.

    Attributes
    ----------
    case, dtype, device
        Names of the case, and of the dtype and device in which it runs.
    clauses
        The clauses that the case is about.
    """

    case: str
    dtype: str
    device: str
    clauses: tuple[str, ...]
    _case: AnyCase = field(repr=False, compare=False)
    _started: _Started = field(repr=False, compare=False)

    def __call__(self) -> None:
        """Judge the case, and end the test with the outcome.

        A refusal (NotImplementedError) and a case that does not fit into the function's envelope skip the test; a known
        deviation and an advisory are expected failures.

        Raises
        ------
        pytest.fail.Exception
            With the message of the failure and its diagnosis.
        """
        __tracebackhide__ = True
        judging = self._started.suite
        target = next((t for t in judging.selection.targets if (t.dtype, t.device) == (self.dtype, self.device)), None)
        if target is None:
            pytest.skip(f"{self.dtype} on {self.device} is refused")
        case = fit(self._case, target.implementation.envelope)
        judged = judging.judge(target, case)
        result = judged.result
        if result.outcome is Outcome.FAILED:
            (failed,), *_ = judging.explained({(target, case): judged}, Adapters())
            pytest.fail(failed.message, pytrace=False)
        if result.outcome in (Outcome.UNSUPPORTED, Outcome.NOT_APPLICABLE):
            pytest.skip(result.reason)
        if result.outcome in (Outcome.KNOWN_DEVIATION, Outcome.ADVISORY):
            pytest.xfail(result.reason)


class _Started:
    """The process of a function, which the first test starts and the end of the run ends."""

    def __init__(self, function: Function, **settings: object) -> None:
        self._function, self._settings = function, settings

    @functools.cached_property
    def suite(self) -> Suite:
        """The suite that judges the function."""
        stack = ExitStack()
        atexit.register(stack.close)
        return stack.enter_context(suite(self._function, **self._settings))  # type: ignore[arg-type]


def parametrize(
    function: Function,
    *,
    framework: str | None = None,
    operator: str = "sdpa",
    dtypes: Sequence[str] = (),
    devices: Sequence[str] = (),
    cases: Sequence[str] = (),
    deviations: Sequence[str | Path] = (),
    isolated: bool = True,
    timeout: float = TIMEOUT,
) -> pytest.MarkDecorator:
    """One pytest test for each case that a function takes, in the user's own suite.

    Parameters
    ----------
    function, framework, operator, dtypes, devices, cases, deviations, isolated, timeout
        As in ``check``.  Nothing is called when tests are collected: the first one that runs starts the process.

    Returns
    -------
    pytest.MarkDecorator
        For a test whose argument is ``check``, and that calls it::

            @parametrize(attention, framework="torch")
            def test_attention(check):
                check()

    Raises
    ------
    ImplementationError
        In one sentence, when the tests are collected.
    """
    if not callable(function):
        raise ImplementationError(f"expected a function, got {type(function).__name__}")
    called = as_called(function, name_of(function))
    signature = operator_of(called, operator)
    accepted = keywords(called, signature)
    taken = framework_of(function) if framework is None else framework
    arrays = arrays_of(taken)
    if arrays not in list(Framework):
        raise ImplementationError(f"unknown framework {taken!r}{nearest(taken, list(Framework))}")
    record = Implementation(name_of(function), "", signature.name, Framework(arrays))
    record = with_attributes(record, attributes_of(called))
    dtypes, devices, deviations = as_list(dtypes), as_list(devices), as_list(deviations)
    refuse_unknown("dtypes=", dtypes, DTYPES)
    refuse_unknown("devices=", devices, DEVICES)
    started = _Started(
        function,
        framework=framework,
        operator=operator,
        dtypes=dtypes,
        devices=devices,
        deviations=deviations,
        isolated=isolated,
        timeout=timeout,
    )
    chosen = chosen_cases(as_list(cases), "cases=")
    unfitted = asked_cases() if chosen is None else {case.name: case for case in chosen}
    checks = [
        Check(case.name, dtype, device, case.clauses, unfitted[case.name], started)
        for device in (devices or backend(record.framework).devices())
        for dtype in record.dtypes
        if dtype in (dtypes or DTYPES)
        for case in cases_for(Target(record, device, dtype), chosen)
        if case.keywords <= accepted and not case.unfit
    ]
    several = len({check.device for check in checks}) > 1
    names = ["-".join([*([check.device] if several else []), check.dtype, check.case]) for check in checks]
    return pytest.mark.parametrize(ARGUMENT, checks, ids=names)
