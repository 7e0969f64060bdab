"""Rows of large problems: an answer that is wrong anywhere is rejected, and a right one is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from attention_conformance.bench.gate import problems, rows
from attention_conformance.bench.tests.candidates import Candidate
from attention_conformance.conformance.judging.outcomes import Outcome, Result
from attention_conformance.conformance.run_case import blank_of
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.calls import Reply
from attention_conformance.impls.contract import Implementation
from attention_conformance.impls.envelope import Shape

SIZES = Shape(2, 4, 2, 96, 64, 8, 8)
SEED = 5


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A size that is quick to compute counts as large, and few of its rows are affordable."""
    monkeypatch.setattr(rows, "WHOLE", 1 << 12)
    monkeypatch.setattr(rows, "WORK", 1 << 16)


def results(spoil: Callable[[np.ndarray, np.ndarray], None], required: tuple[str, ...] = ()) -> dict[str, Result]:
    """The results, by problem, of an answer that ``spoil`` changes, given v."""
    found = {}
    for number, one in enumerate(problems.problems(required, (SIZES,), "float32", SEED)):
        inputs = one.inputs("float32")
        output = np.array(one.expected("float32").output, dtype=np.float32)
        spoil(output, inputs.v)
        target = Target(Implementation("it", "nowhere:it"), "cpu", "float32")
        reply = Reply("returned", {"output": output})
        found[one.name] = rows.judge_rows(reply, one, blank_of(target, one), SEED, number)
    return found


def failing(found: dict[str, Result]) -> set[str]:
    """The kinds of problems that failed."""
    return {name.partition("-")[0] for name, one in found.items() if one.outcome is Outcome.FAILED}


@pytest.mark.slow(1)
def test_a_right_answer_passes_all_problems() -> None:
    """Options with parts by batch and by head are included."""
    found = results(lambda output, v: None, ("mask", "bias", "is_causal", "kv_lengths", "sinks", "softcap"))
    assert {one.outcome for one in found.values()} == {Outcome.PASSED}, [one.reason for one in found.values()]
    assert len(found) > 15


def _one_row(output: np.ndarray, v: np.ndarray) -> None:
    output[1, 2, 77] *= 1.01


def _last_tile(output: np.ndarray, v: np.ndarray) -> None:
    output[:, :, 64:] = output[:, :, :32]


def _half(output: np.ndarray, v: np.ndarray) -> None:
    output[:, :, ::2] = np.repeat(v.mean(2, keepdims=True), 2, axis=1)


def _one_element_of_one_head(output: np.ndarray, v: np.ndarray) -> None:
    output[0, 3, 50, 3] += 0.01


@pytest.mark.slow(1)
@pytest.mark.parametrize("spoil", [_one_row, _last_tile, _half, _one_element_of_one_head])
def test_rows_that_are_wrong_are_found_wherever_they_are(spoil: Callable[[np.ndarray, np.ndarray], None]) -> None:
    """The problems with repeated queries judge all rows."""
    assert "repeated" in failing(results(spoil))


def test_what_is_right_where_queries_repeat_is_found_by_rows_that_are_drawn() -> None:
    """One head's output for all passes only in problems whose heads are all alike."""

    def spoil(output: np.ndarray, v: np.ndarray) -> None:
        if not np.array_equal(v[0, 0], v[-1, -1]):
            output[:] = output[:1, :1]

    found = results(spoil)
    assert {"normal", "uniform", "telling", "pointing"} <= failing(found)
    assert {one.outcome for name, one in found.items() if name.startswith("repeated")} == {Outcome.PASSED}


@pytest.mark.slow(1)
@pytest.mark.parametrize("value", [np.nan, 0.0, 1e6])
def test_a_row_that_looks_odd_is_found_in_every_problem(value: float) -> None:
    """The row is found whichever rows are drawn."""

    def spoil(output: np.ndarray, v: np.ndarray) -> None:
        output[1, 1, 41] = value

    assert {one.outcome for one in results(spoil).values()} == {Outcome.FAILED}


def test_a_wrong_shape_is_told_of_the_whole() -> None:
    """The shape is checked before a part is taken."""
    one = problems.timed(SIZES, "float32", SEED, 0)
    blank = blank_of(Target(Implementation("it", "nowhere:it"), "cpu", "float32"), one)
    found = rows.judge_rows(Reply("returned", {"output": np.zeros((2, 4, 9, 8), np.float32)}), one, blank, SEED, 0)
    assert "shape (2, 4, 9, 8), expected (2, 4, 96, 8)" in found.reason


@pytest.mark.parametrize("sizes", [SIZES, Shape(32, 32, 32, 512, 512, 1024, 1024), Shape(1, 3, 1, 70000, 9, 8, 8)])
def test_the_blocks_of_eight_problems_have_every_head(sizes: Shape) -> None:
    """Each block has the first and the last row, too."""
    blocks = [rows.block(sizes, SEED, number) for number in range(rows.BLOCKS)]
    pairs = {(b, h) for each in blocks for b in each.batches for h in each.heads}
    assert len(pairs) == sizes.b * sizes.hkv
    assert all({0, sizes.sq - 1} <= set(each.rows) for each in blocks)
    assert len({each.rows for each in blocks}) > 1


def test_the_rows_are_others_for_another_seed() -> None:
    """A candidate cannot predict the rows."""
    assert rows.block(SIZES, 1, 0).rows != rows.block(SIZES, 2, 0).rows
    assert not np.array_equal(rows.places(SIZES, 1), rows.places(SIZES, 2))


TILED = """
def attention(q, k, v):
    out = np.empty((*q.shape[:3], v.shape[3]), q.dtype)
    for at in range(0, q.shape[2], 256):
        out[:, :, at : at + 256] = exact(q[:, :, at : at + 256], k, v)
    return out
"""


@pytest.mark.slow(10)
def test_the_gate_judges_a_large_size_by_rows(tmp_path: Path) -> None:
    """The verdict notes the judged rows, and what they cost."""
    verdict = Candidate("it", "", TILED).decided(tmp_path, shape=["2,4,4,96,64,8"])
    assert (verdict.verdict, verdict.reasons) == ("accepted", [])
    (note,) = (each for each in verdict.notes if "judged by" in each)
    assert "all rows where queries repeat" in note
    assert note.endswith("problems")


@pytest.mark.slow(40)
def test_a_cheat_that_leaves_rows_out_is_rejected_at_a_size_that_is_truly_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few rows in the last tile are copies of their neighbours; only some problems judge all rows."""
    monkeypatch.undo()
    assert rows.large(Shape(1, 1, 1, 4096, 8200, 8, 8))
    code = TILED.replace("    return out", "    out[0, 0, 3900:3903] = out[0, 0, 3903:3906]\n    return out")
    verdict = Candidate("it", "", code).decided(tmp_path, shape=["1,1,1,4096,8200,8"], budget=500.0)
    assert verdict.verdict == "rejected"
    assert any(each.problem.startswith("repeated") for each in verdict.reasons)
