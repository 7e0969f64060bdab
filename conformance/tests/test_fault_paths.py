"""Faults on paths: correct off their path, wrong on it, and each caught by two cases of the kernels' tier."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import pytest

import attention_conformance.conformance.faults as plug_ins
from attention_conformance.conformance.cases import Case, kernels
from attention_conformance.conformance.cases.design import Row
from attention_conformance.conformance.cases.kernel_paths import kernel_paths
from attention_conformance.conformance.cases.kernels import call_of
from attention_conformance.conformance.faults import FAULTS, PATH_FAULTS
from attention_conformance.conformance.faults.kill_matrix import LEAST, implementation
from attention_conformance.conformance.faults.models.on_path import Mistake, bound
from attention_conformance.conformance.faults.models.sdpa import Attention
from attention_conformance.conformance.faults.paths import masks
from attention_conformance.conformance.faults.paths.table import TABLE
from attention_conformance.conformance.faults.registry import Fault, link
from attention_conformance.conformance.faults.trials import verdict
from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.conformance.run_case import blank_of, run_case
from attention_conformance.conformance.spec.clauses import clauses
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.process.pool import Pool

#: A call that takes most paths of decoding, and a float32 call with one head that takes few.
CALLS = (
    Row(1, 300, (64, 64), 2, 1, 1, "mask", "float16", True),
    Row(5, 7, (8, 8), 1, 1, 2, "causal-window", "float32", False),
)


def caught_on_path(fault: Fault, cases: Iterable[Case], pool: Pool, enough: int = LEAST) -> tuple[str, ...]:
    """Names of the smallest cases that catch a fault; the search stops at ``enough``.

    Parameters
    ----------
    fault
        One of PATH_FAULTS.
    cases
        Cases that do not take the fault's path, or lack an option that it needs to show, are not run: the fault is
        correct attention there.
    pool
        Processes to call the fault in.
    enough
        Number of names to find.
    """
    make = cast("type[Mistake]", fault.make)
    plugged, caught = implementation(fault), []
    for case in sorted(cases, key=lambda case: case.size):
        call = call_of(case)
        if not make.path.taken(call) or make.shows_with() - call.options:
            continue
        target = Target(plugged, "cpu", case.dtypes[0])
        reply = run_case(target, case, pool, timeout=None)
        if verdict(reply, case, blank_of(target, case)).outcome is Outcome.FAILED:
            caught.append(case.name)
            if len(caught) == enough:
                break
    return tuple(caught)


@pytest.fixture(scope="module")
def tier() -> tuple[Case, ...]:
    """Every case of the tier."""
    return tuple(kernels.cases())


def path_of(fault: Fault) -> Mistake:
    """An instance of a fault."""
    return cast("Mistake", fault.make())


def test_there_are_enough() -> None:
    """There are at least sixty faults on forty paths, none with the name of another fault."""
    assert len(PATH_FAULTS) == len(TABLE) >= 60
    assert len({path for path, _, _ in TABLE}) >= 40
    assert not PATH_FAULTS.keys() & FAULTS.keys()


@pytest.mark.parametrize("fault", PATH_FAULTS.values(), ids=lambda fault: fault.name)
def test_a_fault_has_a_clause_and_its_path_as_a_source(fault: Fault) -> None:
    """A fault's first source is the file of its path, which is also its condition."""
    assert fault.clause in clauses()
    assert fault.when.endswith(".")
    assert link(fault.sources[0]) == path_of(fault).path.link
    assert all(link(source).startswith("https://github.com/") for source in fault.sources)


@pytest.mark.parametrize("fault", PATH_FAULTS.values(), ids=lambda fault: fault.name)
def test_a_fault_is_correct_off_its_path(fault: Fault) -> None:
    """A call that does not take the path gets the correct result bit by bit."""
    for row in CALLS:
        case = kernels.of_row("test", "A call", row)
        if path_of(fault).path.taken(kernels.call_of(case)):
            continue
        inputs = case.inputs(row.dtype)
        wrong, right = (make(*inputs.arrays.values(), **inputs.keywords) for make in (path_of(fault), Attention()))
        pairs = zip(wrong, right, strict=True) if row.lse else [(wrong, right)]
        assert all(one.tobytes() == other.tobytes() for one, other in pairs)


def test_a_fault_is_plugged_in_by_its_name() -> None:
    """A fault on a path is plugged in by its name, like other faults."""
    assert isinstance(plug_ins.fa2_width_64_window_later_tiles, Attention)


def test_an_unknown_path_is_refused() -> None:
    """A fault on a misspelt path is refused."""
    with pytest.raises(KeyError):
        bound("fa2-width-63", masks.MaskTailOpen, "Never")


@pytest.mark.slow
@pytest.mark.parametrize("fault", PATH_FAULTS.values(), ids=lambda fault: fault.name)
def test_a_fault_is_caught_twice(fault: Fault, tier: tuple[Case, ...]) -> None:
    """A fault, plugged in like a user's function, is caught by two cases."""
    assert len(caught_on_path(fault, tier, Pool(in_process=True))) == LEAST


@pytest.mark.slow
def test_a_survivor_would_be_seen(tier: tuple[Case, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake that changes nothing is caught by no case of its path."""
    none = bound("vllm-partitions", Mistake, "None")
    fault = Fault("vllm-partitions-none", "SDPA-1", "nothing", ("path vllm-partitions",), none)
    monkeypatch.setitem(PATH_FAULTS, fault.name, fault)
    assert caught_on_path(fault, tier, Pool(in_process=True)) == ()


def test_a_mistake_says_what_it_needs() -> None:
    """A mistake knows the options with which it shows, from the steps that it changes."""
    assert masks.WindowLaterTiles.shows_with() == {"window"}
    assert path_of(PATH_FAULTS["fa2-even-tiles-lse-of-first-tile"]).shows_with() == {"lse"}
    assert path_of(PATH_FAULTS["fa3-pack-gqa-last-of-group"]).shows_with() == frozenset()


def test_tiles_are_those_of_the_path() -> None:
    """Numbers of rows and keys per tile come from the data file."""
    fault = path_of(PATH_FAULTS["fa3-width-96-key-tail-dropped"])
    assert (fault.rows, fault.tile) == (192, 144) == (kernel_paths()["fa3-width-96"].rows, fault.path.keys)
