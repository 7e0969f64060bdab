"""Targets: what a run judges or times, implementation × device × dtype, and the processes that they run in."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from attention_conformance.conformance.cases import every_case, quick_cases
from attention_conformance.impls import envelope_probe
from attention_conformance.impls.contract import DTYPES, Implementation, ImplementationError, Profile
from attention_conformance.impls.loading import nearest
from attention_conformance.impls.process.pool import IMPORT_TIMEOUT, Crashed, Pool, TimedOut
from attention_conformance.impls.select import select, with_attributes

#: Values of ``--device``.
DEVICES = ("cpu", "cuda")

#: Approximate seconds per case from which an implementation is not quick.
QUICK = 0.05

#: Seconds for the probe of an envelope: its own limit, and the call that is running then.
PROBE_TIMEOUT = 120.0


@dataclass(frozen=True)
class Target:
    """An implementation on a device in a dtype: the unit that the suite judges and times."""

    implementation: Implementation
    device: str
    dtype: str

    @property
    def id(self) -> str:
        """A name for test ids and reports."""
        return f"{self.implementation.name}-{self.device}-{self.dtype}"

    @property
    def profile(self) -> Profile:
        """(SDPA-25) The precision profile that its results are judged by."""
        return self.implementation.profile(self.dtype, self.device)


def profile_key(implementation: str, device: str, dtype: str) -> str:
    """Name of a target's profile in a result file, without the device on the CPU.

    Parameters
    ----------
    implementation, device, dtype
        Names.

    Returns
    -------
    str
        "torch-sdpa/float32", "jax-nn/cuda-float32".
    """
    return f"{implementation}/{dtype}" if device == "cpu" else f"{implementation}/{device}-{dtype}"


@dataclass(frozen=True)
class Selection:
    """Selection of a run, found before its first test: targets, keywords, and what is not installed."""

    targets: tuple[Target, ...]
    #: Features by implementation name.
    keywords: dict[str, frozenset[str]]
    #: Packages that are missing, by implementation name.
    not_installed: dict[str, tuple[str, ...]]
    #: Versions of packages that took part.
    versions: dict[str, str]
    #: Implementations that do not name their keywords: with ``**kwargs``, or as gradients of functions that name them.
    implied: frozenset[str] = frozenset()


def choose(
    patterns: Sequence[str], devices: Sequence[str], dtypes: Sequence[str], pool: Pool, *, probe: bool = False
) -> Selection:
    """Select implementations by what ``--impl`` takes, and ``examine`` them.

    Parameters
    ----------
    patterns
        Globs, names, or ``FILE:FUNCTION``.
    devices, dtypes
        Names; empty for all that there are.
    pool
        The processes to import them in.
    probe
        Whether to probe for envelopes.

    Returns
    -------
    Selection
        The targets, and what is not installed.

    Raises
    ------
    ImplementationError
        In one sentence, for anything that cannot be used.
    """
    return examine(select(patterns), devices, dtypes, pool, probe=probe)


def examine(
    implementations: Iterable[Implementation],
    devices: Sequence[str],
    dtypes: Sequence[str],
    pool: Pool,
    *,
    probe: bool = False,
) -> Selection:
    """Import implementations, and find their devices.

    Parameters
    ----------
    implementations
        Implementations to judge.
    devices, dtypes
        Names; empty for all that there are.
    pool
        The processes to import them in.
    probe
        Whether to probe for the envelope of a plug-in that declares none; this calls it.

    Returns
    -------
    Selection
        The targets, and what is not installed.

    Raises
    ------
    ImplementationError
        In one sentence, for anything that cannot be used.
    """
    refuse_unknown("--device ", devices, DEVICES)
    refuse_unknown("--dtype ", dtypes, DTYPES)
    targets: list[Target] = []
    keywords, not_installed, versions, found_devices = {}, {}, {}, {}
    implied, implementations = set(), tuple(implementations)
    pool.start(implementation for implementation in implementations if not implementation.missing())
    for implementation in implementations:
        missing = implementation.missing()
        if missing:
            not_installed[implementation.name] = missing
            continue
        described = replace(implementation, worker=implementation.deferred or implementation.worker)
        description = _ask(pool, described, "attention_conformance.impls.calls:describe")
        if implementation.folder:
            implementation = with_attributes(implementation, description.attributes)
            if probe:
                declared = "dtypes" in description.attributes
                where = Pool(in_process=False) if pool.in_process else pool  # a debugger sees only the calls of cases
                implementation = _probed(implementation, where, declared, devices)
                if where is not pool:
                    where.close()
        keywords[implementation.name] = description.keywords
        if description.accepts_anything or implementation.function_of:
            implied.add(implementation.name)
        key = (implementation.process, implementation.framework)
        if key not in found_devices:
            found_devices[key] = _ask(pool, implementation, "attention_conformance.impls.calls:devices")
            versions.update(_ask(pool, implementation, "attention_conformance.impls.calls:versions"))
        for device in found_devices[key]:
            if device in implementation.devices and device in (devices or DEVICES):
                targets += [Target(implementation, device, d) for d in implementation.dtypes if d in (dtypes or DTYPES)]
    return Selection(tuple(targets), keywords, not_installed, versions, frozenset(implied))


def _probed(implementation: Implementation, pool: Pool, declared: bool, asked: Sequence[str]) -> Implementation:
    """A plug-in with what a probe finds: its envelope if it declares no sizes, and its dtypes if it declares none.

    ``declared`` dtypes stay, so that a refused one shows in every case; so do declared sizes, and the envelope then
    says where the probe's calls were refused.  A model has its own sizes, and ranks are too slow to probe.  An
    accelerator is probed first, as its kernels limit the sizes; the CPU is probed where the accelerator takes no call.
    """
    static = implementation.envelope.source == "static axes"
    if implementation.operator not in envelope_probe.OPERATORS or static or implementation.distribution is not None:
        return implementation
    devices = _ask(pool, implementation, "attention_conformance.impls.calls:devices")
    found: envelope_probe.Probed | None = None
    for device in reversed(DEVICES):
        if device not in devices or device not in implementation.devices or device not in (asked or DEVICES):
            continue
        try:
            found = pool.call(
                implementation,
                "attention_conformance.impls.envelope_probe:probe",
                implementation,
                device,
                declared,
                timeout=PROBE_TIMEOUT,
            )
        except (Crashed, TimedOut):
            return implementation  # for the cases to show
        if found.dtypes:
            break
    if found is None:
        return implementation
    dtypes = implementation.dtypes if declared else found.dtypes or implementation.dtypes
    return replace(implementation, envelope=found.envelope, dtypes=dtypes)


def _ask(pool: Pool, implementation: Implementation, question: str) -> Any:
    try:
        return pool.call(implementation, question, implementation, timeout=IMPORT_TIMEOUT)
    except (Crashed, TimedOut) as error:
        raise ImplementationError(f"importing {implementation.name}: {error}") from None


def refuse_unknown(option: str, given: Sequence[str], names: Sequence[str]) -> None:
    """Raise ImplementationError for an unknown name.

    Parameters
    ----------
    option
        Words before the name, such as ``"--device "`` or ``"devices="``.
    given, names
        Names that were given, and known names.

    Raises
    ------
    ImplementationError
        For the first unknown name, with the nearest known one.
    """
    for name in given:
        if name not in names:
            raise ImplementationError(f"{option}{name}: unknown{nearest(name, names)}")


#: Keys of the selection that is judged, with probed envelopes, and of the one that is only timed.
_SELECTION, _TIMED = pytest.StashKey[Selection](), pytest.StashKey[Selection]()
#: Seconds that the selection took.
_SECONDS = pytest.StashKey[float]()
_POOL = pytest.StashKey[Pool]()
#: Names of the implementations that a quick run leaves out.
_SLOW = pytest.StashKey[set[str]]()


def selection(config: pytest.Config, *, probe: bool = True) -> Selection:
    """The run's selection, made once, from its command line; without ``probe`` no implementation is called for it.

    Parameters
    ----------
    config
        Pytest's configuration of the run, which keeps it.
    probe
        Whether to probe for envelopes.

    Returns
    -------
    Selection
        The targets, and what is not installed.

    Raises
    ------
    ImplementationError
        In one sentence, for anything that cannot be used.
    """
    key = _SELECTION if probe or _SELECTION in config.stash else _TIMED
    if key not in config.stash:
        option = config.getoption
        chosen, devices, dtypes = select(option("impl")), option("device"), option("dtype")
        slow = {each.name for each in chosen if each.case_seconds >= QUICK}
        config.stash[_SLOW] = slow if option("quick") and not option("impl") else set()
        chosen = tuple(each for each in chosen if each.name not in config.stash[_SLOW])
        began = time.perf_counter()
        config.stash[key] = examine(chosen, devices, dtypes, pool(config), probe=probe)
        config.stash[_SECONDS] = time.perf_counter() - began
    return config.stash[key]


def selected(config: pytest.Config) -> bool:
    """Whether the run has made its selection of what is judged, so that asking for it costs nothing."""
    return _SELECTION in config.stash


def selected_within(config: pytest.Config) -> float:
    """Seconds that the run's selection took, including imports and probes."""
    return config.stash.get(_SECONDS, 0.0)


def left_out(config: pytest.Config) -> str:
    """Sentence on what a quick run left out; "" for any other run."""
    if not config.getoption("quick"):
        return ""
    few, slow = quick_cases(), sorted(config.stash.get(_SLOW, ()))
    said = f"quick: {len(few)} cases, which show every known mistake and every clause; the other"
    said += f" {len(every_case()) - len(few)} were not run, so whole features are not judged"
    return said + (f"; skipped, as each case is compiled or exported: {', '.join(slow)}" if slow else "")


def every_case_asked(config: pytest.Config) -> bool:
    """Whether the command line leaves no case out: no ``--case``, no ``--quick``, no ``-k``, no test by its id."""
    return not config.getoption("quick") and _none_chosen(config)


def only_quick(config: pytest.Config) -> bool:
    """Whether only ``--quick`` leaves cases out."""
    return bool(config.getoption("quick")) and _none_chosen(config)


def _none_chosen(config: pytest.Config) -> bool:
    return not (config.getoption("case") or config.option.keyword or any("::" in one for one in config.args))


def targets(config: pytest.Config) -> tuple[Target, ...]:
    """The targets of the run."""
    return selection(config).targets


def keywords(config: pytest.Config, implementation: Implementation) -> frozenset[str]:
    """The features of an implementation that takes part in the run; nothing is probed for them.

    Parameters
    ----------
    config
        Pytest's configuration of the run.
    implementation
        An implementation of its selection.

    Returns
    -------
    frozenset[str]
        Names of keywords.
    """
    return selection(config, probe=False).keywords[implementation.name]


def pool(config: pytest.Config) -> Pool:
    """The run's processes; they end with the run.

    Parameters
    ----------
    config
        Pytest's configuration of the run, which keeps it.

    Returns
    -------
    Pool
        The pool, one for the whole run.
    """
    if _POOL not in config.stash:
        config.stash[_POOL] = Pool(config.getoption("in_process"), config.getoption("case_memory"))
        config.add_cleanup(config.stash[_POOL].close)
    return config.stash[_POOL]
