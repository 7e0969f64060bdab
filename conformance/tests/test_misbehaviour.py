"""Implementations that misbehave: each way is an outcome of its own case, and the next case is unaffected."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from attention_conformance.conformance.cases import all_cases
from attention_conformance.conformance.judging.outcomes import IN_WORDS, Failure, Outcome, Result
from attention_conformance.conformance.ledger.load import Ledger
from attention_conformance.conformance.run.run_checks import side_effect_lines
from attention_conformance.conformance.run_case import judge_case
from attention_conformance.conformance.targets import Target
from attention_conformance.conformance.tests.test_results import SCHEMA
from attention_conformance.impls.contract import Framework, Implementation
from attention_conformance.impls.process import limits
from attention_conformance.impls.process.pool import Pool
from attention_conformance.impls.process.state import thread_settings

pytestmark = pytest.mark.slow

#: Memory of a case here: several times what a worker with only NumPy imported holds.
MEMORY = 512 << 20

#: Fakes with their framework and the reported change of state.
LEFT = {
    "sums_in_a_random_order": (Framework.NUMPY, "random numbers of NumPy: moved on or seeded"),
    "silences_numpy": (Framework.NUMPY, "error state of NumPy: {'divide': 'warn', "),
    "rounds_up": (Framework.NUMPY, "floating-point mode: rounds to nearest, keeps subnormal numbers → rounds up, "),
    "threads_blas": (Framework.NUMPY, "threads of lib"),
    "moves": (Framework.NUMPY, " → /"),
    "speaks_another_language": (Framework.NUMPY, "locale: "),
    "takes_a_signal": (Framework.NUMPY, "signal handlers: SIGUSR1 changed"),
    "widens_torch": (Framework.TORCH, "default dtype of torch: torch.float32 → torch.float64"),
    "flushes_torch": (Framework.TORCH, "keeps subnormal numbers → rounds to nearest, flushes subnormal numbers"),
    "threads_torch": (Framework.TORCH, "threads of torch: "),
    "moves_torch": (Framework.TORCH, "default device of torch: cpu → meta"),
    "stops_gradients_of_torch": (Framework.TORCH, "gradient mode of torch: True → False"),
    "determines_torch": (Framework.TORCH, "deterministic algorithms of torch: (False, False) → (True, True)"),
    "loosens_torch": (Framework.TORCH, "matmul precision of torch: highest → high"),
    "widens_jax": (Framework.JAX, "configuration of jax: jax_enable_x64 False → True"),
}


#: Fakes that draw random numbers and do not use them.
DRAWS = {
    "seeds_python": (Framework.NUMPY, "Python"),
    "draws_from_numpy": (Framework.NUMPY, "NumPy"),
    "draws_from_torch": (Framework.TORCH, "torch"),
    "builds_a_layer_of_torch": (Framework.TORCH, "torch"),
}


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """Worker processes of bounded memory, shared by the tests of this module."""
    pool = Pool(in_process=False, memory=MEMORY)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def roomy() -> Iterator[Pool]:
    """Worker processes for frameworks, which need more memory than the bound here."""
    pool = Pool(in_process=False)
    yield pool
    pool.close()


def judged(
    pool: Pool, name: str, framework: Framework = Framework.NUMPY, timeout: float = 120, case: str = "plain"
) -> Result:
    """The result of a fake on a case; all fakes of a framework share a process."""
    package = {Framework.ONNXRUNTIME: "onnxruntime"}.get(framework, framework.value)
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    module = "fakes" if name in ("right", "wrong", "aborts", "exits", "hangs") else "misbehaving"
    implementation = Implementation(
        name, f"attention_conformance.impls.tests.{module}:{name}", framework=framework, worker=package
    )
    target = Target(implementation, "cpu", "float32")
    return judge_case(target, all_cases()[case], pool, frozenset(), Ledger(), {}, timeout).result


@pytest.mark.parametrize(
    ("name", "failure", "said"),
    [
        ("wrong", Failure.VALUE, "times the bound"),
        ("segfaults", Failure.CRASHED, "killed by SIGSEGV"),
        ("aborts", Failure.CRASHED, "killed by SIGABRT"),
        ("exits", Failure.CRASHED, "ended itself with exit code 3"),
        ("exits_at_once", Failure.CRASHED, "ended itself with exit code 0"),
        ("interrupts", Failure.CRASHED, "killed by SIGINT"),
        ("is_killed", Failure.CRASHED, "killed by SIGKILL, as the system does where memory runs out"),
    ],
)
def test_a_process_that_ends_is_the_failure_of_its_case(pool: Pool, name: str, failure: Failure, said: str) -> None:
    """Whatever ends a process, the case reports it, and the next case gets a fresh process."""
    result = judged(pool, name)
    assert (result.outcome, result.failure) == (Outcome.FAILED, failure)
    assert said in result.reason
    assert judged(pool, "right").outcome is Outcome.PASSED


@pytest.mark.parametrize("name", ["hangs", "spins", "waits_for_itself"])
def test_what_does_not_return_is_a_timeout(pool: Pool, name: str) -> None:
    """Sleeping, computing forever and a deadlock end at the timeout, and the next case gets a fresh process."""
    assert judged(pool, name, timeout=0.5).failure is Failure.TIMEOUT
    assert judged(pool, "right").outcome is Outcome.PASSED


@pytest.mark.parametrize("name", ["hogs", "hogs_in_a_program"])
def test_more_memory_than_allowed_is_a_failure_by_memory(pool: Pool, name: str) -> None:
    """A call that takes memory without end, itself or in a program, is ended; the next case gets a fresh process."""
    result = judged(pool, name)
    assert (result.failure, result.reason) == (Failure.MEMORY, "took more than 512 MiB")
    assert "wrong by memory" in result.message
    assert judged(pool, "right").outcome is Outcome.PASSED


def test_a_kill_while_memory_ran_out_is_a_failure_by_memory(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the system counts a process killed as memory ran out, the case fails by memory."""
    counted = iter(range(10))
    pool.close()
    monkeypatch.setattr(limits, "kills", lambda: next(counted))
    result = judged(pool, "is_killed")
    assert (result.failure, result.reason) == (
        Failure.MEMORY,
        "the system ended the process (SIGKILL): memory ran out",
    )


def test_a_leak_is_a_side_effect_and_fails_no_later_case(pool: Pool) -> None:
    """A process that has kept half of a case's memory is replaced, so that twice as many leaking calls pass."""
    results = [judged(pool, "leaks") for _ in range(20)]
    assert {result.outcome for result in results} == {Outcome.PASSED}
    assert any("memory kept: " in each for result in results for each in result.side_effects)


def test_printing_without_end_is_a_crash(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that would fill the disk is ended."""
    monkeypatch.setattr(limits, "PRINTED", 1 << 24)
    result = judged(pool, "prints_for_ever")
    assert (result.failure, result.reason) == (Failure.CRASHED, "it was stopped: it printed more than 16 MiB")
    assert len(result.message) < 10_000


@pytest.mark.parametrize(
    ("name", "side_effect"),
    [
        ("prints_a_line", "prints: 19 bytes, beginning with 'starting attention\\n'"),
        ("prints_from_c", "prints: 14 bytes, beginning with 'block size 64\\n'"),
        ("warns_for_every_element", "warnings: 1000 in one call, the first 'UserWarning: slow path'"),
        ("sets_a_variable", "environment: ATTENTION_TEST_VARIABLE added"),
    ],
)
def test_what_harms_nothing_is_a_side_effect(pool: Pool, name: str, side_effect: str) -> None:
    """Printing, a storm of warnings and a changed environment fail nothing, and are reported without any secret."""
    result = judged(pool, name)
    assert result.outcome is Outcome.PASSED
    assert result.side_effects == (side_effect,)
    assert judged(pool, "right").side_effects == ()


def test_a_warning_is_not_a_side_effect(pool: Pool) -> None:
    """A single warning is not a side effect, as libraries warn now and then."""
    assert judged(pool, "warns_once").side_effects == ()


@pytest.mark.parametrize("name", LEFT)
def test_state_that_is_left_changed_fails(roomy: Pool, name: str) -> None:
    """A right result does not excuse changed state; the message says what changed, from what to what."""
    framework, said = LEFT[name]
    if name == "threads_blas" and not thread_settings():
        pytest.skip("NumPy's linear algebra does not tell its threads here")
    result = judged(roomy, name, framework)
    assert (result.outcome, result.failure, result.broken) == (Outcome.FAILED, Failure.STATE, "SDPA-29")
    assert said in result.reason
    assert "Changed:  " in result.message


@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_that_no_result_depends_on_are_a_remark(roomy: Pool, name: str) -> None:
    """A layer built in the call draws random numbers: the case passes, and a remark says to build it outside."""
    framework, whose = DRAWS[name]
    result = judged(roomy, name, framework)
    assert (result.outcome, result.failure) == (Outcome.PASSED, None)
    (line,) = side_effect_lines([result])
    assert f"random numbers of {whose} in one case, plain in float32: moved on or seeded; " in line
    assert "build it outside" in line


@pytest.mark.parametrize(
    ("name", "outcome"),
    [("draws_from_numpy", Outcome.PASSED), ("refuses_with_a_random_number", Outcome.FAILED)],
)
def test_random_numbers_that_no_refusal_depends_on_are_a_remark(roomy: Pool, name: str, outcome: Outcome) -> None:
    """A refusal after a draw passes if it repeats in the same words, and fails otherwise."""
    result = judged(roomy, name, case="invalid-lengths")
    assert (result.outcome, bool(side_effect_lines([result]))) == (outcome, outcome is Outcome.PASSED)


def test_a_library_that_falls_back_gets_a_fresh_process(roomy: Pool) -> None:
    """Torch compiles for eight shapes and then runs uncompiled: the case is judged in a fresh process, and says so."""
    small = ["plain", "one-batch", "one-key", "one-query", "width-6", "value-width-1", "plain-tall", "queries-16"]
    names = [*small, "width-128", "width-256"]
    results = [judged(roomy, "compiles_for_each_shape", Framework.TORCH, case=name) for name in names]
    assert {result.outcome for result in results} == {Outcome.PASSED}
    told = [effect for result in results for effect in result.side_effects if effect.startswith("fell back: ")]
    assert len(told) == 1
    assert "recompile_limit (8)" in told[0]
    assert told[0].endswith("; judged in a fresh process")


def test_a_session_that_fails_over_gets_a_fresh_process(pool: Pool) -> None:
    """A session would stay on another provider: the second case is judged in a fresh process, like the first."""
    results = [judged(pool, "fails_over_at_the_second_call", case=name) for name in ("plain", "one-key")]
    assert {result.outcome for result in results} == {Outcome.PASSED}
    using = "using ['CUDAExecutionProvider', 'CPUExecutionProvider']"
    said = f"fell back: EP Error: CUDA failure 700 {using}; judged in a fresh process"
    assert [said in result.side_effects for result in results] == [False, True]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lacks_a_provider", "Specified provider 'NoSuchExecutionProvider' is not in available provider names"),
        ("finds_no_accelerator", "Falling back to cpu."),
    ],
)
def test_a_fallback_of_every_process_is_said(roomy: Pool, name: str, said: str) -> None:
    """A fallback that occurs in a fresh process too is reported, without starting one."""
    pytest.importorskip("onnxruntime")
    results = [judged(roomy, name, case=case) for case in ("plain", "one-key")]
    assert {result.outcome for result in results} == {Outcome.PASSED}
    assert all(any(each.startswith("fell back: ") and said in each for each in r.side_effects) for r in results)
    assert not any("fresh process" in each for result in results for each in result.side_effects)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("onnxruntime.capi.onnxruntime_inference_collection", 'print(f"EP Error: {err!s} using'),
        ("onnxruntime.capi.onnxruntime_inference_collection", "Specified provider '{}' is not in available provider"),
        ("jax._src.xla_bridge", "Falling back to"),
        ("torch._dynamo.convert_frame", "hit config."),
    ],
)
def test_libraries_still_say_so(module: str, words: str) -> None:
    """The installed libraries still print the words that are searched for."""
    pytest.importorskip(module.partition(".")[0])
    found = importlib.util.find_spec(module)
    assert found is not None
    assert words in Path(str(found.origin)).read_text(encoding="utf-8")


def test_what_was_changed_is_put_back(pool: Pool) -> None:
    """Changed state is restored for the next case, in the same process."""
    assert judged(pool, "rounds_up").failure is Failure.STATE
    assert judged(pool, "right").outcome is Outcome.PASSED
    assert judged(pool, "rounds_up").reason == judged(pool, "rounds_up").reason


def test_what_cannot_be_put_back_ends_the_process(pool: Pool) -> None:
    """If state cannot be restored, the next case gets a fresh process."""
    some = Implementation("right", "attention_conformance.impls.tests.fakes:right", worker="numpy")
    before = pool.call(some, "os:getpid")
    assert judged(pool, "silences_numpy").failure is Failure.STATE
    assert pool.call(some, "os:getpid") == before
    assert judged(pool, "silences_numpy_for_good").failure is Failure.STATE
    assert pool.call(some, "os:getpid") != before
    assert judged(pool, "silences_numpy").failure is Failure.STATE


def test_a_worse_failure_is_told_with_the_change(pool: Pool) -> None:
    """An exception is the failure, and the message also lists the changed state."""
    result = judged(pool, "rounds_up_and_raises")
    assert result.failure is Failure.ERROR
    assert "Changed:  floating-point mode: " in result.message
    assert result.message.splitlines()[-1].startswith("Rerun: ")


def test_side_effects_are_said_once(pool: Pool) -> None:
    """The end of a run has one line for each kind, with the number of cases."""
    results = [judged(pool, name) for name in ("prints_a_line", "prints_a_line", "right")]
    assert side_effect_lines(results) == [
        "side effect: prints_a_line on cpu: prints in 2 cases, first plain in float32:"
        " 19 bytes, beginning with 'starting attention\\n'"
    ]


def test_every_failure_has_its_words() -> None:
    """Every kind of failure has words for pages and scripts, and is in the schema of result files."""
    assert set(IN_WORDS) == set(Failure) - {Failure.STALE}
    assert set(SCHEMA["$defs"]["Failure"]["enum"]) == set(Failure)
