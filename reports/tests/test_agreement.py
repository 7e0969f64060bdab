"""Whether two runs of the bench agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attention_conformance.cli import main
from attention_conformance.reports.tests.files import bench_run, cell

#: Metadata of a run, as the page shows it.
ABOUT: dict[str, Any] = {
    "command": "pytest bench",
    "started": "2026-01-01T10:00:00+00:00",
    "finished": "2026-01-01T10:02:03+00:00",
    "load_average": 0.5,
}


def run(folder: Path, name: str, **cells: tuple[float, float, float]) -> str:
    """A file with cells of these medians and intervals, in milliseconds."""
    timed = [
        cell(one, 128, median_ms=value, interval=[low / 1e3, high / 1e3]) for one, (value, low, high) in cells.items()
    ]
    return str(bench_run(folder / name, *timed, **ABOUT))


def test_intervals_that_overlap_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Medians may differ, as long as neither run says that they do."""
    files = run(tmp_path, "one.json", a=(10, 9, 11)), run(tmp_path, "other.json", a=(12, 10.9, 13))
    assert main(["agree", *files]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "1 of 1 cells agree within their intervals",
        "half of the intervals are within 10.6 % of their medians, nine of ten within 11.0 %",
        "half of the medians differ by at most 20.0 % between the runs",
    ]


def test_intervals_that_are_apart_do_not_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The cell is named with both intervals, and the command ends with 1; cells of only one run are counted."""
    files = run(tmp_path, "one.json", a=(10, 9, 11), b=(1, 1, 1)), run(tmp_path, "other.json", a=(12, 11.1, 13))
    assert main(["agree", *files]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "0 of 1 cells agree within their intervals",
        "1 cells are in one run only",
        "half of the intervals are within 9.7 % of their medians, nine of ten within 10.8 %",
        "half of the medians differ by at most 20.0 % between the runs",
        "a cpu float32 prefill-b1h8d64s128: 10 ms (9 to 11) and 12 ms (11.1 to 13), ratio 1.200",
    ]


def test_runs_of_other_cells_say_nothing(tmp_path: Path) -> None:
    """No cell in common is not agreement."""
    files = run(tmp_path, "one.json", a=(10, 9, 11)), run(tmp_path, "other.json", b=(10, 9, 11))
    assert main(["agree", *files]) == 2


@pytest.mark.parametrize(
    "text", ["", "[]", '{"benchmarks": []}', '{"benchmarks": [{"name": "a", "stats": {"median": 1}}]}']
)
def test_a_file_of_something_else_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    """No JSON, other JSON, or pytest-benchmark's own: it cannot tell, in one sentence."""
    other = tmp_path / "other.json"
    other.write_text(text)
    assert main(["agree", run(tmp_path, "one.json", a=(10, 9, 11)), str(other)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"error: {other} ")
    assert captured.err.count("\n") == 1
