"""(SDPA-39) ``--fresh N``: a race of the first call is found and reported, and honest functions pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from attention_conformance.conformance import results
from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.ledger.page import TAIL
from attention_conformance.conformance.run import first_calls
from attention_conformance.conformance.spec.clauses import BY_OPTION
from attention_conformance.conformance.targets import Target
from attention_conformance.conformance.tests import first_call_kernels
from attention_conformance.impls.contract import Implementation
from attention_conformance.impls.select import builtin
from attention_conformance.impls.tests import commands

pytestmark = pytest.mark.slow(15)

KERNELS = "attention_conformance.conformance.tests.first_call_kernels"


def judged(name: str, processes: int = 3, dtype: str = "float32", **versions: str) -> Result:
    """The result of a stand-in, without load, which the stand-ins do not need."""
    stand_in = Implementation(name, f"{KERNELS}:{name}")
    return first_calls.judge(Target(stand_in, "cpu", dtype), processes, versions, load=0)


def test_a_race_of_the_first_call_is_found() -> None:
    """The report has the number of processes and elements, where, by how much, and that the second call is right."""
    found = judged("racing")
    assert found.outcome is Outcome.ADVISORY
    assert found.broken == first_calls.CLAUSE in BY_OPTION
    assert "3 of 3 first calls differ (100.00%)" in found.reason
    assert "heads 4 to 7" in found.reason or "heads 0 to 3" in found.reason
    assert "beyond the bound; the second call of the same process is right" in found.reason
    assert (
        "Rerun:    attention-conformance check racing --device cpu --dtype float32 -k test_first_calls --fresh 3"
        in (found.message)
    )


def test_the_same_under_a_lock_is_right() -> None:
    """Choosing at the first call is no mistake under a lock; only the race is."""
    found = judged("locked")
    assert found.outcome is Outcome.PASSED
    assert found.reason == "3 first calls, each right and equal to the second"


def test_an_honest_function_is_right_under_load() -> None:
    """A built-in reference passes next to busy processes."""
    found = first_calls.judge(Target(builtin()["numpy-eager"], "cpu", "float32"), 3, {}, load=2)
    assert found.outcome is Outcome.PASSED


def test_a_death_in_the_first_call_fails() -> None:
    """A death in the first call fails, as the clause's SHOULD is only about accuracy."""
    found = judged("dying", 2)
    assert found.outcome is Outcome.FAILED
    assert found.failure is Failure.CRASHED
    assert "2 of 2 first calls returned nothing: the process was killed by SIGABRT" in found.reason


def test_a_call_that_does_not_return_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call is ended after its time limit, one process after the other."""
    monkeypatch.setattr(first_calls, "SECONDS", 1.0)
    found = judged("hanging", 2)
    assert found.outcome is Outcome.FAILED
    assert "2 of 2 first calls returned nothing: did not return within 1 s" in found.reason


def test_an_exception_of_the_first_call_alone_is_told() -> None:
    """The exception of the first call is reported, and that the second call returned."""
    found = judged("raising_first", 2)
    assert found.outcome is Outcome.ADVISORY
    assert "the first raised RuntimeError: not warm yet, the second returned" in found.reason


def test_a_known_cause_is_named() -> None:
    """The known cause is named only where torch took part."""
    assert "pytorch#188792" in judged("racing", 1, torch="2.13.0").message
    assert "pytorch#188792" not in judged("racing", 1).message


def test_the_numbers_are_not_from_the_race_of_a_slow_machine() -> None:
    """The choice takes far longer than the work of the other thread before it."""
    assert first_call_kernels.CHOOSING >= 0.5


def test_layers_are_not_asked() -> None:
    """Layers are unsupported, as the clause is about sdpa."""
    found = first_calls.judge(Target(builtin()["numpy-layer"], "cpu", "float32"), 1, {})
    assert found.outcome is Outcome.UNSUPPORTED


def check(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """``attention-conformance check`` in a folder."""
    return commands.run([sys.executable, "-m", "attention_conformance", "check", *words], cwd=folder)


def test_the_option_judges_and_records(tmp_path: Path) -> None:
    """``check --fresh N``: an advisory fails nothing, is printed, and is in the result file."""
    options = ["--dtype", "float32", "-k", "test_first_calls", "--fresh", "2", "--conformance-json", "out.jsonl"]
    done = check(tmp_path, f"{first_call_kernels.__file__}:racing", *options)
    assert done.returncode == 0, done.stdout
    assert "1 xfailed" in done.stdout
    assert "2 of 2 first calls differ" in done.stdout
    (result,) = results.read(tmp_path / "out.jsonl").results
    assert (result.case, result.outcome) == (first_calls.NAME, Outcome.ADVISORY)


def test_a_death_in_the_first_call_fails_the_run(tmp_path: Path) -> None:
    """A death in the first call fails the run, and its message is printed once."""
    options = ("--dtype", "float32", "-k", "test_first_calls", "--fresh", "1")
    done = check(tmp_path, f"{first_call_kernels.__file__}:dying", *options)
    assert done.returncode == 1
    assert "1 failed" in done.stdout
    assert done.stdout.count("Seen:     1 of 1 first calls returned nothing") == 1


@pytest.mark.parametrize("number", ["0", "-3"])
def test_a_number_that_is_none_is_refused(number: str, tmp_path: Path) -> None:
    """A number below 1 is refused before anything is judged."""
    done = check(tmp_path, "numpy-eager", f"--fresh={number}")
    assert done.returncode != 0
    assert "expected a number of processes, 1 or more" in done.stdout + done.stderr


def test_without_the_option_nothing_is_asked(tmp_path: Path) -> None:
    """Without the option the test neither runs nor counts as skipped."""
    done = check(tmp_path, "numpy-eager", "--dtype", "float32", "--case", "plain")
    assert "1 passed" in done.stdout
    assert "first_calls" not in done.stdout


def test_what_was_seen_of_the_real_race_stands_on_the_page() -> None:
    """The page cites the real race and how often it was seen here."""
    text = TAIL.read_text(encoding="utf-8")
    assert "https://github.com/pytorch/pytorch/issues/188792" in text
    assert "1 of 300" in text


def test_a_result_of_another_shape_is_told() -> None:
    """A wrong shape that both calls give is reported, and is no race."""
    found = judged("transposed")
    assert found.outcome is Outcome.ADVISORY
    assert "both calls give (1, 256, 8, 64), and not (1, 8, 256, 64)" in found.reason
