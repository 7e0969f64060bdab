"""The part of the pytest plugin for ``--fuzz N``: one test per target and property, and the seed in print.

hypothesis is not imported unless the option is given.
"""

from __future__ import annotations

import importlib.util
import secrets
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from attention_conformance.conformance import targets
from attention_conformance.conformance.judging.outcomes import Result
from attention_conformance.conformance.ledger import triggers
from attention_conformance.conformance.ledger.load import read

if TYPE_CHECKING:
    from attention_conformance.conformance.properties.properties import Property
    from attention_conformance.conformance.properties.run import Setting
    from attention_conformance.impls.contract import Implementation

#: The file whose tests are parametrised here.
TESTS = Path(__file__).resolve().parent.parent / "test_properties.py"

#: Seeds are drawn below this: short enough to be typed.
SEEDS = 2**32

_SETTING = pytest.StashKey["Setting"]()


def pytest_configure(config: pytest.Config) -> None:
    """Refuse options that cannot be followed, in one sentence, and choose the seed."""
    examples, seed = config.getoption("fuzz"), config.getoption("fuzz_seed")
    if examples is None:
        if seed is not None:
            raise pytest.UsageError("--fuzz-seed needs --fuzz N")
        return
    if examples < 1:
        raise pytest.UsageError(f"--fuzz {examples}: expected a number of examples, 1 or more")
    if importlib.util.find_spec("hypothesis") is None:
        raise pytest.UsageError("--fuzz needs the package hypothesis: pip install 'attention-conformance[fuzz]'")
    from attention_conformance.conformance.properties.run import Setting

    shared = getattr(config, "workerinput", {}).get("fuzz_seed")  # from the process that distributes the tests
    seed = shared if seed is None else seed
    config.stash[_SETTING] = Setting(examples, secrets.randbelow(SEEDS) if seed is None else seed)


def fuzz_seed(config: pytest.Config) -> int | None:
    """The seed of the run's random problems, None without them."""
    return config.stash[_SETTING].seed if _SETTING in config.stash else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore the property tests without ``--fuzz``, rather than skip them."""
    return True if collection_path == TESTS and _SETTING not in config.stash else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give the tests with the arguments ``target`` and ``prop`` one item per target and property of its operator."""
    if not {"target", "prop"} <= set(metafunc.fixturenames):
        return
    if _SETTING not in metafunc.config.stash:
        pytest.fail(f"{TESTS.name} needs --fuzz N, the number of examples", pytrace=False)
    known = _known()
    chosen = targets.targets(metafunc.config)
    pairs = [(t, p) for t in chosen for p in known if p.operator == t.implementation.operator]
    metafunc.parametrize(("target", "prop"), pairs, ids=[f"{t.id}-{p.name}" for t, p in pairs])


def _known() -> list[Property]:
    """Every property."""
    from attention_conformance.conformance.properties.properties import PROPERTIES
    from attention_conformance.conformance.properties.serving_properties import SERVING_PROPERTIES

    return [*PROPERTIES.values(), *SERVING_PROPERTIES.values()]


def untried_lines(implementations: Iterable[Implementation]) -> list[str]:
    """Lines on operators that have no properties, and the implementations of which none was tried."""
    tried = {prop.operator for prop in _known()}
    names: dict[str, dict[str, None]] = defaultdict(dict)
    for each in implementations:
        if each.operator not in tried:
            names[each.operator][each.name] = None
    return [f"{operator} has no properties: --fuzz tried nothing of {', '.join(of)}" for operator, of in names.items()]


def pytest_report_header(config: pytest.Config) -> list[str]:
    """The seed, before anything is drawn."""
    return [seed_line(config.stash[_SETTING])] if _SETTING in config.stash else []


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The seed once more: ``-q`` has no header."""
    if _SETTING in config.stash and not config.getoption("collectonly"):
        terminalreporter.write_line(seed_line(config.stash[_SETTING]))
        if targets.selected(config):
            for line in untried_lines(target.implementation for target in targets.targets(config)):
                terminalreporter.write_line(line, yellow=True)


def seed_line(setting: Setting) -> str:
    """Line that says how to repeat the run."""
    return f"fuzz seed {setting.seed}: --fuzz {setting.examples} --fuzz-seed {setting.seed} repeats it"


@pytest.fixture(scope="session")
def fuzzing(request: pytest.FixtureRequest) -> Fuzzing:
    """Source of the results of properties."""
    return Fuzzing(request.config)


class Fuzzing:
    """The property tests of a run, one after the other in the thread of pytest: nothing in them depends on time."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._ledger = read()

    def result(self, target: targets.Target, prop: Property) -> Result:
        """Result of a property on a target."""
        from attention_conformance.conformance.properties.run import fuzz
        from attention_conformance.conformance.properties.trial import Context

        config, name = self._config, target.implementation.name
        selection = targets.selection(config)
        records = triggers.records(name, target.device, target.dtype, self._ledger, selection.versions)
        timeout = config.getoption("case_timeout")
        context = Context(target, targets.pool(config), selection.keywords[name], records, timeout)
        return fuzz(prop, context, config.stash[_SETTING])
