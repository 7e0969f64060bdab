"""Tests of the cost of returning freed memory to the system."""

from __future__ import annotations

import pytest

from attention_conformance.impls.process import allocator
from studies import allocator as study
from studies.common import measured

pytestmark = pytest.mark.slow

#: Pages that the objects of Python may take in a call.
FEW = 300


@pytest.mark.skipif(
    allocator.description() != "stays with the process", reason="another C library, or variables that are set"
)
def test_a_process_that_keeps_its_memory_takes_few_pages() -> None:
    """Each call has a row with times of both kinds of processes; where memory is kept there are few page faults."""
    found = measured(study.measure, processes=1, seconds=0.02)
    rows = [[cell.strip() for cell in row.split("|")] for row in study.table(found).splitlines()]
    rows = rows[2 : 2 + len(study.CALLS)]
    assert [row[1] for row in rows] == [f"{name}, S = {length}" for name, length in study.CALLS]
    assert all(int(row[5]) < FEW for row in rows)
