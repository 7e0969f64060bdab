"""Gate: every cheat is rejected with a reason that names it, and honest kernels are accepted."""

from __future__ import annotations

import functools
import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from attention_conformance.bench.gate import command, decide, hidden, libraries, modules, noticed, problems
from attention_conformance.bench.gate.verdict import Verdict
from attention_conformance.bench.tests import forked
from attention_conformance.bench.tests.candidates import CHEATS, HONEST, PRELUDES, PROBLEM, SECRET, SHAPE, Candidate
from attention_conformance.bench.validity import cheating
from attention_conformance.bench.validity.cheating import Job
from attention_conformance.bench.validity.checks import Invalid
from attention_conformance.cli import main
from attention_conformance.impls.contract import Implementation, InputError
from attention_conformance.impls.envelope import Shape
from attention_conformance.impls.process import pool
from attention_conformance.impls.process.pool import Crashed

PRELUDE = PRELUDES["numpy"]
PLAIN = "def attention(q, k, v):\n    return exact(q, k, v)\n"
TORCH = """import torch


def attention(q, k, v):
    return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v


def library(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)
"""


def decided(path: Path, code: str, name: str = "attention", **changes: Any) -> tuple[Verdict, int]:
    """The verdict on a candidate with this code, from its file, and the exit status."""
    path.joinpath("candidate.py").write_text(code, encoding="utf-8")
    file = path / "verdict.json"
    given: dict[str, Any] = {
        "candidate": f"{path}/candidate.py:{name}", "task": None, "require": "", "shape": [SHAPE], "dtype": [],
        "profile": None, "device": "cpu", "own_work": False, "seed": None, "budget": 100.0, "json": str(file),
    }  # fmt: skip
    _, status = command.run(**given | changes)
    return msgspec.json.decode(file.read_bytes(), type=Verdict), status


@functools.cache
def understood(text: str) -> modules.Problem:
    """The problem that a text states; no candidate affects it, so it is read once for equal texts."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "problem.py")
        path.write_text(text, encoding="utf-8")
        return command.problem_of(str(path))


@pytest.fixture
def cheaper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch is imported once for the workers of many candidates, each of which still is its own process."""
    monkeypatch.setattr(pool, "subprocess", forked.workers)
    asked = understood(PROBLEM)
    monkeypatch.setattr(command, "problem_of", lambda file: replace(asked, file=file))


@pytest.mark.slow(4)
@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.name)
def test_a_cheat_is_rejected(
    cheat: Candidate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """The reason contains the words in the cheat's record."""
    if cheat.framework != "numpy":
        pytest.importorskip(cheat.framework)
    if cheat.framework == "torch" and hasattr(os, "fork"):
        request.getfixturevalue("cheaper")
    monkeypatch.setenv(SECRET, "1")
    verdict = cheat.decided(tmp_path)
    assert verdict.verdict == "rejected"
    said = [f"{each.kind}: {each.text}" for each in verdict.reasons]
    assert any(cheat.reason in each for each in said), said


@pytest.mark.slow(20)
@pytest.mark.parametrize("kernel", HONEST, ids=lambda kernel: kernel.name)
def test_an_honest_kernel_of_a_framework_is_accepted(kernel: Candidate, tmp_path: Path) -> None:
    """None of its actions is mistaken for a cheat."""
    for name in {"numpy": (), "jax": ("jax",)}.get(kernel.framework, ("torch",)):
        pytest.importorskip(name)
    if kernel.name == "onnxruntime":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
    verdict = kernel.decided(tmp_path, budget=240.0)
    assert (verdict.verdict, verdict.reasons) == ("accepted", [])


@pytest.mark.parametrize(("language", "framework"), [("triton", "torch"), ("pallas", "jax")])
def test_a_kernel_to_be_interpreted_is_refused(language: str, framework: str, tmp_path: Path) -> None:
    """The gate's worker has no interpreter, so that nothing is said of such a kernel."""
    with pytest.raises(InputError, match=f"the gate interprets no kernels: give it as @{framework}"):
        decided(tmp_path, PLAIN, f"attention@{language}")


def test_a_candidate_that_names_a_language_of_kernels_gets_plain_tensors(tmp_path: Path) -> None:
    """Only what the user asks for is refused: by its source a candidate is a function of the framework's arrays."""
    file = tmp_path / "candidate.py"
    file.write_text(
        "from jax.experimental import pallas as pl\n\n\ndef attention(q, k, v):\n    return pl.pallas_call(q)\n",
        encoding="utf-8",
    )
    found = command.implementation(f"{file}:attention", None)
    assert (found.framework, found.kernels) == ("jax", "")


@pytest.mark.slow(4)
def test_an_honest_kernel_is_accepted_and_timed(tmp_path: Path) -> None:
    """The verdict has times by both clocks."""
    verdict, status = decided(tmp_path, PRELUDE + PLAIN)
    assert (verdict.verdict, status, verdict.reasons) == ("accepted", 0, [])
    assert verdict.asked == verdict.right > 40
    (timed,) = verdict.timing
    assert all(whole > call > 0 for call, whole in zip(timed.seconds, timed.parent_seconds, strict=True))


UNSEEN = """import os
import sys


def attention(q, k, v):
    traces = (*sys.modules, *sys.argv, *sys.orig_argv, *sys.path[1:], *map(repr, sys.meta_path), *os.environ)
    if any("conformance" in each.lower() for each in traces):
        raise RuntimeError("judged")
    return exact(q, k, v)
"""


@pytest.mark.slow(4)
def test_no_call_finds_a_name_of_the_suite(tmp_path: Path) -> None:
    """No call finds one, though the worker's own imports and jobs need those names between calls."""
    verdict, _ = decided(tmp_path, PRELUDE + UNSEEN)
    assert (verdict.verdict, verdict.reasons) == ("accepted", [])


@pytest.mark.parametrize(
    ("name", "counted"),
    [
        ("aten::scaled_dot_product_attention", True),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", True),
        ("aten::_native_multi_head_attention", True),
        ("flash_attn_3::fwd_flash_attn", True),
        ("aten::softmax", False),
        ("aten::bmm", False),
        ("mine::flash_attention", False),
    ],
)
def test_operators_of_libraries_are_told_from_others(name: str, counted: bool) -> None:
    """A kernel that a user registers under another name is the user's own work."""
    assert bool(libraries.OPERATORS.fullmatch(name)) == counted


def test_asking_for_the_profiler_is_noticed_where_the_candidate_asks(tmp_path: Path) -> None:
    """A library's use of the profiler is not noticed."""
    own = tmp_path / "candidate.py"
    own.write_text("def ask(state):\n    return state()\n", encoding="utf-8")
    names: dict[str, Any] = {}
    exec(compile(own.read_text(encoding="utf-8"), str(own), "exec"), names)  # noqa: S102  (of this test)
    by = noticed.Callers(str(own), hidden.rooms())
    state = libraries._guarded(lambda: False, "it asks", by.direct)
    noticed.take_events()
    assert (state(), noticed.take_events()) == (False, ())  # this file is part of the suite
    assert names["ask"](state) is False
    assert noticed.take_events() == ("looks: it asks",)


@pytest.mark.slow(8)
@pytest.mark.parametrize(
    ("name", "own_work", "status"), [("attention", True, 0), ("library", False, 0), ("library", True, 1)]
)
def test_calls_of_a_library_are_counted_and_refused_where_own_work_is_asked(
    name: str, own_work: bool, status: int, tmp_path: Path
) -> None:
    """Calls are counted by the operator that torch runs, however it is reached."""
    pytest.importorskip("torch")
    verdict, got = decided(tmp_path, TORCH, f"{name}@torch", own_work=own_work)
    assert got == status, verdict.reasons
    assert any("scaled_dot_product" in each for each in verdict.library_calls) == (name == "library")


def test_a_keyword_that_the_task_requires_and_the_signature_lacks_is_a_rejection(tmp_path: Path) -> None:
    """The candidate is rejected before any call."""
    verdict, status = decided(tmp_path, PRELUDE + PLAIN, require="is_causal")
    assert (status, verdict.reasons[0].kind) == (1, "refuses")


def test_keywords_that_the_task_does_not_require_are_named_as_not_tried(tmp_path: Path) -> None:
    """A mistake that needs such a keyword is not found, so the verdict names those that were not tried."""
    more = "def attention(q, k, v, *, scale=None, softcap=None):\n    return exact(q, k, v)\n"
    verdict, status = decided(tmp_path, PRELUDE + more)
    assert status == 0
    assert verdict.notes == ["not tried, as the task does not require them: scale, softcap"]
    assert decided(tmp_path, PRELUDE + PLAIN)[0].notes == []


def test_a_spent_budget_is_no_verdict(tmp_path: Path) -> None:
    """The gate cannot tell."""
    verdict, status = decided(tmp_path, PRELUDE + PLAIN, budget=0.01)
    assert (verdict.verdict, status) == ("cannot tell", 3)


@pytest.mark.slow(3)
def test_a_seed_asks_the_same_again(tmp_path: Path) -> None:
    """The same seed gives the same reasons."""
    wrong = PRELUDE + "def attention(q, k, v):\n    return exact(q, k, v) * np.float32(0.99)\n"
    first, _ = decided(tmp_path, wrong)
    assert json.loads(msgspec.json.encode(decided(tmp_path, wrong, seed=first.seed)[0].reasons)) == json.loads(
        msgspec.json.encode(first.reasons)
    )


def test_a_profile_that_means_nothing_for_the_dtype_is_refused(tmp_path: Path) -> None:
    """Only float32 is multiplied in TF32; in float64 its bounds would let half the digits be wrong."""
    with pytest.raises(InputError, match="--profile tf32: profile is 'tf32'; expected one of wide in float64"):
        decided(tmp_path, "", dtype=["float64"], profile="tf32")


@pytest.mark.parametrize("shape", ["", "1,2", "1,3,2,4,4,8", "1,1,1,0,4,8", "a,b,c,d,e,f"])
def test_a_shape_that_is_none_is_refused(shape: str) -> None:
    """The message has the expected form."""
    with pytest.raises(InputError, match="expected B,Hq,Hkv"):
        command.read_shape(shape)


def test_clocks_that_agree_are_believed_and_others_are_not() -> None:
    """An overhead is no evidence, nor is waiting for a core; hidden processor time in half of the jobs is."""
    busy = [Job(0.01, each, -0.01) for each in (0.001, 0.5, 0.5, 0.5, 0.5, 0.5)]
    cheating.disagreeing_clocks(busy)
    cheating.disagreeing_clocks([Job(0.01, 0.006, 0.006)] * 6, 0.003)
    with pytest.raises(Invalid, match="118 ms more by its parent's"):
        cheating.disagreeing_clocks([Job(0.000957, 0.118, None)] * 6, 0.001)
    with pytest.raises(Invalid, match="50 ms more of processor time"):
        cheating.disagreeing_clocks([*busy[:2], *[Job(0.01, 0.06, 0.05)] * 4])


def test_a_time_beyond_the_peak_is_invalid() -> None:
    """The time must be beyond the peak by more than the noise of the measurement."""
    cheating.beyond_peak(1.2)
    with pytest.raises(Invalid, match="times as fast"):
        cheating.beyond_peak(5.17)


@pytest.mark.slow(4)
def test_a_candidate_that_is_faster_than_the_machine_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the machine is one that computes next to nothing."""
    monkeypatch.setattr(decide, "best_product", lambda *_, **__: 1e3)
    verdict, status = decided(tmp_path, PRELUDE + PLAIN)
    assert (status, [each.kind for each in verdict.reasons]) == (1, ["peak"])


@pytest.mark.parametrize(
    ("always", "sizes", "pairs"),
    [({}, (4, 6), 24), ({"is_causal": True}, (4, 6), 10), ({"is_causal": True}, (6, 4), 18)],
)
def test_a_causal_call_has_the_operations_of_the_pairs_that_it_needs(
    monkeypatch: pytest.MonkeyPatch, always: dict[str, bool], sizes: tuple[int, int], pairs: int
) -> None:
    """A row sees the keys up to its own number; counting all pairs would double the apparent speed."""
    monkeypatch.setattr(decide, "best_product", lambda *_, **__: 1.0)
    gate = decide.Gate(Implementation("it", "nowhere:it"), decide.Task(always=always), 1, 0.0)
    assert gate._share(Shape(2, 3, 1, *sizes, 8, 8), "float32", 1.0) == 2 * 2 * 3 * pairs * 16


def test_a_framework_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is one sentence, before any process is started."""
    monkeypatch.setattr(Implementation, "missing", lambda self: ("torch",))
    with pytest.raises(InputError, match=r"candidate\.py:attention needs torch, which is not installed"):
        decided(tmp_path, PRELUDE + PLAIN)


@pytest.mark.parametrize("words", [("--seed", "-1"), ("--budget", "inf"), ("--budget", "0")])
def test_a_number_that_makes_no_sense_is_refused(words: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the option."""
    with pytest.raises(SystemExit):
        main(["gate", "candidate.py:attention", *words])
    assert f"argument {words[0]}: {words[1]}: expected" in capsys.readouterr().err


def test_a_verdict_that_could_not_be_written_is_not_made(tmp_path: Path) -> None:
    """The missing folder is reported before the candidate is judged."""
    with pytest.raises(InputError, match=r"--json .*there is no folder"):
        decided(tmp_path, PRELUDE + PLAIN, json=str(tmp_path / "none" / "verdict.json"))


def test_a_process_that_cannot_be_started_is_no_rejection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No candidate ran, so the gate cannot tell."""

    def call(self: Any, *_: Any, **__: Any) -> Any:
        raise Crashed("the process was killed by SIGKILL", "")

    monkeypatch.setattr(pool.Pool, "call", call)
    verdict, status = decided(tmp_path, PRELUDE + PLAIN)
    assert (verdict.verdict, status, [each.kind for each in verdict.reasons]) == ("cannot tell", 3, ["budget"])
    assert "no process could be started" in verdict.reasons[0].text


def test_a_budget_that_ends_in_the_middle_is_no_answer_of_the_candidate() -> None:
    """The end of the budget does not count as a malformed answer."""
    gate = decide.Gate(Implementation("it", "nowhere:it"), decide.Task(), 1, 0.0)
    gate._until = 0.0
    with pytest.raises(decide._Over):
        gate._ask(problems.timed(decide.DEFAULT, "float32", 1, 0), "float32", in_place=False)


def test_there_are_forty_cheats_and_five_honest_kernels() -> None:
    """Each cheat has a source, or says that it has none; the honest kernels cover the gate's frameworks."""
    assert len(CHEATS) >= 40
    assert all(each.reason and each.source for each in CHEATS)
    assert {each.framework for each in HONEST} >= {"numpy", "torch", "jax"}


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("def f():\n    return 'attention_conformance' in sys.modules\n", "line 2"),
        ("JUDGED = any('attention-conformance' in each for each in sys.argv)\n", "line 1"),
        (
            '"""Checked by attention-conformance."""\n# attention_conformance\ndef f():\n    "attention_conformance"\n',
            "",
        ),
        (
            "def f():\n    pass\n\nif __name__ == '__main__':\n    os.system('attention-conformance check me.py:f')\n",
            "",
        ),
        (
            "if __name__ == '__main__':\n    pass\nelse:\n    judged = 'attention_conformance' in sys.modules\n",
            "line 4",
        ),
    ],
)
def test_the_suites_name_in_a_string_is_seen(code: str, line: str) -> None:
    """Docstrings, comments and a file's program part do not count."""
    assert hidden.places_of_name(code).startswith(line)
    assert bool(hidden.places_of_name(code)) == bool(line)


def test_no_honest_kernel_names_the_suite() -> None:
    """The check was added after most of the page's runs, and changes none of them."""
    assert [each.name for each in HONEST if hidden.places_of_name(each.text)] == []


def test_a_task_that_does_not_fit_into_memory_is_no_verdict(tmp_path: Path) -> None:
    """Nothing was judged, so nothing is accepted."""
    verdict, status = decided(tmp_path, PRELUDE + PLAIN, shape=["320,320,320,5120,5120,1024"])
    assert (status, verdict.asked) == (3, 0)
    assert "memory" in verdict.reasons[0].text


@pytest.mark.slow(2)
def test_a_budget_that_ends_between_two_problems_is_no_rejection(tmp_path: Path) -> None:
    """Problems that were not run do not count against the candidate."""
    slow = "import time\n\n\ndef attention(q, k, v):\n    time.sleep(1)\n    return exact(q, k, v)\n"
    verdict, status = decided(tmp_path, PRELUDE + slow, budget=6.0)
    assert (verdict.verdict, status, [each.kind for each in verdict.reasons]) == ("cannot tell", 3, ["budget"])
