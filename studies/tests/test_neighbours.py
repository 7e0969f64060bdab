"""Results per second next to those of neighbours: what is counted, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from studies import neighbours
from studies.common import Unfit

REPORT = """<testsuites><testsuite>
<testcase name="passes"/>
<testcase name="fails"><failure message="no"/></testcase>
<testcase name="breaks"><error message="no"/></testcase>
<testcase name="skips"><skipped type="pytest.skip" message="later"/></testcase>
<testcase name="known"><skipped type="pytest.xfail" message="a record"/></testcase>
</testsuite></testsuites>"""


def test_every_outcome_is_counted_once(tmp_path: Path) -> None:
    """An expected failure is no skipped test, and an error is a failure."""
    path = tmp_path / "report.xml"
    path.write_text(REPORT)
    found = neighbours.counted(path)
    assert found == {"passed": 1, "failed": 2, "skipped": 1, "expected failures": 1}
    assert neighbours.executed(found) == 4


def test_a_folder_without_the_tests_is_refused(tmp_path: Path) -> None:
    """A folder that is no checkout of array-api-tests would give an empty row."""
    with pytest.raises(Unfit, match="not a checkout of array-api-tests"):
        neighbours.neighbours(tmp_path, tmp_path)


def test_the_kept_suites_judged_something() -> None:
    """Both implementations of this suite and both neighbours have results and some seconds of the processor."""
    suites = neighbours.STUDY.kept()["suites"]
    assert [one["suite"] for one in suites][2:] == ["ONNX node tests of Attention", "array-api-tests of linalg"]
    for one in suites:
        assert all(neighbours.executed(run["results"]) > 20 and run["cpu_seconds"] > 0 for run in one["runs"])
