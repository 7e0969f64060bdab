"""The comparison with calls by hand: every pair is timed, except one that computes something else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from studies import speed
from studies.by_hand import Way
from studies.common import measured, median_interval
from studies.speed import COMPARED, PAIRS, STUDY, Differs, Pair, compared, distance, ratio, table

pytestmark = pytest.mark.slow(30)


def by_numpy(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool, scale: float = 1 / 8) -> Way:
    """Right attention in four lines."""

    def run() -> np.ndarray:
        scores = scale * q @ k.swapaxes(2, 3)
        powers = np.exp(np.where(np.tri(q.shape[2], dtype=bool), scores, -np.inf) if causal else scores)
        return powers @ v / powers.sum(-1, keepdims=True)

    return run, lambda found: found


def without_mask(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool) -> Way:
    """Attention that ignores whether to be causal."""
    return by_numpy(q, k, v, False)


def other_scale(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool) -> Way:
    """Attention with the scale of heads of width 65."""
    return by_numpy(q, k, v, causal, 65**-0.5)


def not_numbers(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool) -> Way:
    """Attention that gives NaN, which equals nothing, not even itself."""
    return by_numpy(q * np.float32(np.nan), k, v, causal)


def other_shape(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool) -> Way:
    """Attention whose result has another layout."""
    run, _ = by_numpy(q, k, v, causal)
    return run, lambda found: found.swapaxes(1, 2)


def pair(function: str, causal: bool = True) -> Pair:
    """One of the functions above compared with a built-in."""
    return Pair("numpy-tiled", f"{__name__}:{function}", 64, causal)


def test_every_pair_computes_the_same_and_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each implementation of the page and its call by hand give the same result at a short length, and have times."""
    monkeypatch.setattr(speed, "BATCH_SECONDS", 0.0)
    pairs = list(dict.fromkeys(replace(each, length=16) for each in PAIRS if not each.record.missing()))
    document = measured(compared, pairs=pairs, seconds=0.0, processes=1)
    assert len(document["pairs"]) == len({(p.implementation, p.causal) for p in pairs})
    assert all(len(each["milliseconds"]["ours"][0]) == speed.LEAST for each in document["pairs"])
    assert {line.split("`")[1] for line in table(document).splitlines()[2:-2]} == {p.implementation for p in pairs}


def test_a_right_call_by_hand_is_taken() -> None:
    """Four lines of NumPy are compared with a built-in."""
    (found,) = compared([pair("by_numpy")], 0.0, processes=1)["pairs"]
    assert min(found["milliseconds"]["by_hand"][0]) > 0


def test_a_side_is_warm_before_its_first_batch() -> None:
    """Opening it calls it three times, so that no batch contains the extra time of the first calls."""
    count = [0]

    def counted(*problem: Any) -> Way:
        run, read = by_numpy(*problem)

        def counting() -> Any:
            count[0] += 1
            return run()

        return counting, read

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speed, "load", lambda function: counted)
        speed.open_call("it", "any", 16, False)
    assert count[0] == speed.WARM == 3
    speed.batch("it", 0.0, 0)
    speed.close("it")
    assert count[0] == 4


@pytest.mark.parametrize("function", ["without_mask", "other_scale", "not_numbers", "other_shape"])
def test_a_call_that_computes_something_else_is_refused(function: str) -> None:
    """Another mask, a scale that is off by 0.8 %, NaN or another layout ends the command before anything is timed."""
    with pytest.raises(Differs, match=f"numpy-tiled and .*:{function} at S = 64"):
        compared([pair(function)], 0.0, processes=1)


def test_one_wrong_row_is_a_distance() -> None:
    """Rows are compared one by one: a small row that is wrong does not hide behind large ones."""
    right = np.concatenate([np.full((1, 1, 9, 4), 1e3), np.ones((1, 1, 1, 4))], axis=2)
    wrong = right.copy()
    wrong[0, 0, 9] = 1.01
    assert distance(wrong, right) == pytest.approx(0.01)


@pytest.mark.parametrize(("count", "out"), [(1, 0), (5, 0), (6, 0), (9, 1), (20, 5), (100, 39)])
def test_the_interval_of_a_median(count: int, out: int) -> None:
    """It is as in tables of the binomial distribution: second to eighth of 9 values, sixth to 15th of 20."""
    assert median_interval([*range(count)]) == ((count - 1) / 2, out, count - 1 - out)


def test_a_process_that_differs_widens_the_interval() -> None:
    """The interval reaches to the median of each process, however many batches agree."""
    usual, odd = (1.0,) * 50, (1.3,) * 3
    milliseconds = {"ours": (usual, usual, odd), "by_hand": (usual, usual, (1.0,) * 3)}
    assert ratio(milliseconds) == (1.0, 1.0, 1.3)


def test_the_page_has_all_pairs_or_stays(capsys: pytest.CaptureFixture[str]) -> None:
    """A part of the table does not replace all of it."""
    assert STUDY.main(["--only", "numpy-*", "--page"]) == 2
    assert "--page needs all pairs" in capsys.readouterr().err


def test_a_name_that_is_not_compared_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence refuses it before anything is measured."""
    assert STUDY.main(["--only", "nobody"]) == 2
    assert "nothing that is compared here and installed has such a name" in capsys.readouterr().err


def test_each_implementation_that_is_compared_is_on_the_page() -> None:
    """It is there by its name."""
    ((page, _, _),) = STUDY.blocks()
    text = page.read_text(encoding="utf-8")
    assert [name for name, *_ in COMPARED if f"`{name}`" not in text] == []
