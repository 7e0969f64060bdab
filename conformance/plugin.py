"""The pytest plugin: options that select what is judged, the result file, and the table at the end.

``attention_conformance.pytest_entry`` registers it where the command line names the suite.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from attention_conformance import conformance
from attention_conformance.conformance import options, targets
from attention_conformance.conformance.cases import (
    AnyCase,
    Case,
    asked_kernel_cases,
    asked_serving_cases,
    cases_named,
    every_case,
    few_kernel_cases,
    one_shape_cases,
    quick_cases,
)
from attention_conformance.conformance.cases.fit import dtypes_for, fit, fit_kernels
from attention_conformance.conformance.cases.packed import PackedCase
from attention_conformance.conformance.judging.claims import required
from attention_conformance.conformance.ledger.load import LedgerError
from attention_conformance.conformance.run import first_calls, offsets, sharding, streams, xdist
from attention_conformance.conformance.run.invariance_questions import questions
from attention_conformance.conformance.run.recorder import PLACES, Recorder, check_ledger, is_quick
from attention_conformance.impls.contract import Implementation, ImplementationError
from attention_conformance.impls.envelope import Envelope
from attention_conformance.impls.loading import nearest
from attention_conformance.impls.operators import SDPA
from attention_conformance.impls.select import builtin

#: Tests of ``--fuzz N``.
pytest_plugins = ["attention_conformance.conformance.properties.plugin"]

HERE = Path(conformance.__file__).resolve().parent
ROOT = HERE.parent

#: The tests of ``--fresh N``.
FIRST_CALLS = HERE / "test_first_calls.py"
#: The tests of ``--invariance``.
INVARIANCE = HERE / "test_invariance.py"

#: Tests that pytest generates and skips where no target is tested for the order of its stream or for offsets.
NOBODY_ASKED = ("test_streams[NOTSET]", "test_offsets[NOTSET]")

#: Folders that, named on the command line, judge or time implementations instead of running the tests in them.
ROOMS = ("conformance", "bench")

#: Built-in implementations of sdpa that get a few cases at the sizes of kernels: a new shape costs them nothing.
COMPILES_NOTHING = ("numpy-*", "torch-eager", "torch-sdpa*", "torch-flash-aten", "ort-*")

_RECORDER = pytest.StashKey["Recorder"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of ``pytest conformance`` and ``pytest bench``."""
    group = parser.getgroup("attention-conformance")
    options.add(group.addoption)
    options.add_fuzz(group.addoption)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of other shards, and put quick implementations before compiled ones."""
    items[:] = [item for item in items if item.name not in NOBODY_ASKED]
    shard = config.getoption("shard")
    if shard is not None:
        part = sharding.share_out((xdist.scope(item.nodeid) for item in items), shard.total)
        others = [item for item in items if part[xdist.scope(item.nodeid)] != shard.index]
        config.hook.pytest_deselected(items=others)
        if items and shard.index not in part.values():
            raise pytest.UsageError(
                f"--shard {shard}: implementations are not split, so N can be at most {len(part)} here"
            )
        items[:] = [item for item in items if part[xdist.scope(item.nodeid)] == shard.index]
    config.stash[PLACES] = {item.nodeid: place for place, item in enumerate(items)}
    items.sort(key=lambda item: not is_quick(xdist.target_of(item)))


def pytest_configure(config: pytest.Config) -> None:
    """Register the recorder of results."""
    fresh = config.getoption("fresh")
    if fresh is not None and (fresh < 1 or not first_calls.available()):
        raise pytest.UsageError(f"--fresh {fresh}: expected a number of processes, 1 or more, and a system that forks")
    if xdist.controls(config):
        config.pluginmanager.register(xdist.Gatherer(config), "attention-conformance-gatherer")
        return
    recorder = Recorder(config)
    config.stash[_RECORDER] = recorder
    config.pluginmanager.register(recorder, "attention-conformance-recorder")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Keep runs that tests start from counting as workers of this one: pytest-benchmark would time nothing in them."""
    if xdist.works(session.config):
        os.environ.pop("PYTEST_XDIST_WORKER", None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Scheduler of ``-n``: the cases of an implementation, and the tests of a file, go to one process."""
    if config.getoption("dist") != "load":
        return None
    return xdist.scheduler(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give all workers of a run the seed of the same random problems."""
    from attention_conformance.conformance.properties.plugin import (
        fuzz_seed,  # a plugin of its own, which pytest imports
    )

    seed = fuzz_seed(node.config)
    if seed is not None:
        node.workerinput["fuzz_seed"] = seed


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Judge or time when a room of ROOMS is named; run the tests of its code in plain ``pytest`` or by name."""
    if not collection_path.is_relative_to(ROOT):
        return None
    if collection_path == FIRST_CALLS and config.getoption("fresh") is None:
        return True  # without --fresh there are no such tests, rather than skipped ones
    if collection_path == INVARIANCE and not config.getoption("invariance"):
        return True
    parts = collection_path.relative_to(ROOT).parts
    if len(parts) < 2 or parts[0] not in ROOMS:
        return None
    plain = config.args_source is not pytest.Config.ArgsSource.ARGS
    if parts[1] == "tests":
        return None if plain or _names_inside(config, ROOT / parts[0] / "tests") else True
    if parts[0] == "bench" and parts[1].startswith("test_") and plain:
        return True  # timing runs only by name
    return None


def _names_inside(config: pytest.Config, folder: Path) -> bool:
    paths = [_path(config, arg) for arg in config.args]
    return any(path.is_relative_to(folder) or path == ROOT for path in paths)


def _path(config: pytest.Config, argument: str) -> Path:
    """The file or folder that an argument of the command line names."""
    return Path(config.invocation_params.dir, argument.partition("::")[0]).resolve()


def pytest_collection(session: pytest.Session) -> None:
    """Refuse an unusable selection in one sentence, before anything is collected."""
    config = session.config
    if any(config.getoption(name) for name in ("impl", "device", "dtype", "case", "require", "deviations")):
        try:
            required(config.getoption("require"))
            chosen_cases(config.getoption("case"))
            check_ledger(config)
        except (ImplementationError, LedgerError) as error:
            raise pytest.UsageError(str(error)) from None
    path = config.getoption("conformance_json")
    if path and Path(path).is_dir():
        raise pytest.UsageError(f"--conformance-json {path}: it is a folder")
    if xdist.controls(config) and targets.selected(config):
        targets.pool(config).close()  # its processes have listed what there is; the workers start their own


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give every test with the arguments ``target`` and ``case`` one item per target and case."""
    config = metafunc.config
    if {"target", "fresh"} <= set(metafunc.fixturenames):
        chosen = [t for t in _targets(config) if t.implementation.operator == SDPA.name and t.device == "cpu"]
        fresh = config.getoption("fresh")
        metafunc.parametrize(("target", "fresh"), [(t, fresh) for t in chosen], ids=[f"{t.id}-fresh" for t in chosen])
        return
    if {"target", "question"} <= set(metafunc.fixturenames):
        asked_of = [(t, name) for t in _targets(config) for name in questions(t.implementation.operator)]
        metafunc.parametrize(("target", "question"), asked_of, ids=[f"{t.id}-{name}" for t, name in asked_of])
        return
    if {"target", "in_stream"} <= set(metafunc.fixturenames):
        found = (
            [] if config.getoption("case") else asked_in_streams(_targets(config), targets.selection(config).keywords)
        )
        metafunc.parametrize(("target", "in_stream"), found, ids=[f"{t.id}-stream" for t, _ in found])
        return
    if {"target", "far"} <= set(metafunc.fixturenames):
        chosen = [] if config.getoption("case") else offsets.asked(_targets(config))
        metafunc.parametrize(("target", "far"), [(t, "far") for t in chosen], ids=[f"{t.id}-far" for t in chosen])
        return
    if not {"target", "case", "recorder"} <= set(metafunc.fixturenames):  # other tests use the first two names, too
        return
    cases = chosen_cases(config.getoption("case"))
    if config.getoption("quick"):
        few = quick_cases()
        cases = list(few.values()) if cases is None else [case for case in cases if case.name in few]
    pairs = [(t, c) for t in _targets(config) for c in cases_for(t, cases)]
    metafunc.parametrize(("target", "case"), pairs, ids=[f"{t.id}-{c.name}" for t, c in pairs])


def _targets(config: pytest.Config) -> tuple[targets.Target, ...]:
    """The targets; a failed import is one sentence among the errors of collection."""
    try:
        return targets.targets(config)
    except ImplementationError as error:
        raise pytest.Collector.CollectError(str(error)) from None


def cases_for(target: targets.Target, cases: Sequence[AnyCase] | None) -> list[AnyCase]:
    """Cases of a run for a target: those of its operator and dtype, at sizes inside its envelope.

    Parameters
    ----------
    target
        The target that is judged.
    cases
        Cases that the run's globs name.  None for every case; a plugged-in implementation then also gets the cases at
        the sizes of kernels that find what no other case does.  Built-ins that compile nothing for a shape get a few of
        them; the other built-ins would compile one more form for each, and get them only by name.

    Returns
    -------
    list[AnyCase]
        Cases at the sizes that the envelope takes.
    """
    implementation = target.implementation

    def own(case: AnyCase) -> bool:
        return target.dtype in dtypes_for(case, implementation.dtypes)

    of_operator = [
        c for c in (every_case().values() if cases is None else cases) if c.operator == implementation.operator
    ]
    found = [case for case in (fit(case, implementation.envelope) for case in of_operator) if own(case)]
    if cases is not None:
        return found
    if implementation.operator != SDPA.name:
        own_tier = implementation.name not in builtin()
        return found + [c for c in _serving(implementation) if own_tier and own(c)]
    if implementation.name in builtin():
        asked_few = any(fnmatch(implementation.name, pattern) for pattern in COMPILES_NOTHING)
        return found + [c for c in few_kernel_cases().values() if asked_few and own(c)]
    return found + [c for c in _kernels(implementation.envelope, implementation.dtypes) if own(c)]


def asked_in_streams(
    chosen: Iterable[targets.Target], keywords: Mapping[str, frozenset[str]]
) -> list[tuple[targets.Target, tuple[AnyCase, ...]]]:
    """Targets that are tested for the order of their stream (SDPA-45), each with the cases to try.

    Parameters
    ----------
    chosen
        Targets of a run.
    keywords
        Keywords that each implementation accepts, by its name.

    Returns
    -------
    list[tuple[Target, tuple[AnyCase, ...]]]
        Empty on the CPU; targets that no case fits are left out.
    """
    found = []
    for target in filter(streams.asked, chosen):
        cases = streams.chosen(cases_for(target, None), target, keywords[target.implementation.name])
        found += [(target, cases)] if cases else []
    return found


def _serving(implementation: Implementation) -> list[PackedCase]:
    asked = (case for case in asked_serving_cases().values() if case.operator == implementation.operator)
    return fit_kernels(asked, implementation.envelope, implementation.dtypes)


@functools.cache
def _kernels(envelope: Envelope, dtypes: tuple[str, ...]) -> list[Case]:
    of_one_shape = one_shape_cases().values() if envelope.static else ()
    return fit_kernels([*asked_kernel_cases().values(), *of_one_shape], envelope, dtypes)


def chosen_cases(patterns: list[str], option: str = "--case ") -> list[AnyCase] | None:
    """The cases that the globs name, None without globs.

    Parameters
    ----------
    patterns
        Globs.
    option
        Option that a message names.

    Returns
    -------
    list[AnyCase] | None
        Each case once, in the order of the suite.

    Raises
    ------
    ImplementationError
        For a glob that matches no case; the text names the option.
    """
    if not patterns:
        return None
    chosen: dict[str, AnyCase] = {}
    for pattern in patterns:
        found = cases_named(pattern)
        if not found:
            raise ImplementationError(f"{option}{pattern}: no such case{nearest(pattern, every_case())}")
        chosen |= {case.name: case for case in found}
    order = {name: place for place, name in enumerate(every_case())}
    return sorted(chosen.values(), key=lambda case: order.get(case.name, len(order)))


@pytest.fixture(scope="session")
def recorder(request: pytest.FixtureRequest) -> Recorder:
    """Recorder of the run's results."""
    return request.config.stash[_RECORDER]
