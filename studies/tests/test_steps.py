"""The steps of NumPy's tiled attention: each is timed, and the page has the figures of the file."""

from __future__ import annotations

from studies import steps
from studies.common import measured


def test_every_step_has_its_times_with_both_kernels() -> None:
    """There are as many as rounds, for each step that the table has a name for."""
    document = measured(steps.measure, rounds=3, rows=8, keys=16)
    for found in document["kernels"]:
        assert list(found["nanoseconds"]) == list(steps.TEXTS)
        assert all(len(times) == 3 and min(times) > 0 for times in found["nanoseconds"].values())
    assert [line.split("|")[1].strip() for line in steps.table(document).splitlines()[2:-2]] == [*steps.TEXTS.values()]


def test_a_row_has_the_medians_and_their_intervals() -> None:
    """For five rounds the interval is their whole range."""
    document = measured(steps.measure, rounds=1, rows=8, keys=16)
    for number, found in enumerate(document["kernels"], 1):
        found["nanoseconds"] = {"scores": [2.0 * number, number, 3 * number, 2 * number, 2 * number]}
    assert [cell.strip() for cell in steps.table(document).splitlines()[2].split("|")[1:-1]] == [
        "q · k",
        "2 (1–3)",
        "4 (2–6)",
    ]
