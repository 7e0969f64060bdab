"""Registry of faults: the name of each, the clause that it breaks, and where it really happened."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from attention_conformance.conformance.cases.kernel_paths import kernel_paths
from attention_conformance.conformance.faults.models.sdpa import Model


def _trackers() -> Iterator[tuple[str, str]]:
    """The names and repositories of trackers.txt; of two repositories with one name, a line renames one."""
    for line in Path(__file__).with_name("trackers.txt").read_text(encoding="utf-8").splitlines():
        repository, *name = line.split()
        yield name[0] if name else repository.partition("/")[2], repository


#: Repositories from whose trackers faults come, by the names with which sources begin.
TRACKERS = dict(_trackers())


@dataclass(frozen=True)
class Fault:
    """A fault: an operator computed wrongly in one known way."""

    #: Name in the kill matrix: "causal-bottom-right".
    name: str
    #: The clause that it breaks.
    clause: str
    #: The mistake in the words of a diagnosis: "causal mask aligned bottom-right".
    title: str
    #: Threads ("pytorch 103963", "onnx PR 8068"), "source 001" of the five articles, or a path of kernel_paths.toml;
    #: "cf." stands before one that reports the same mechanism in another place.
    sources: tuple[str, ...]
    make: type[Model] = field(repr=False)

    @property
    def operator(self) -> str:
        """The operator that it computes wrongly."""
        return self.make.operator

    @property
    def attribute(self) -> str:
        """Name as a plug-in: ``attention_conformance.conformance.faults:`` and this."""
        return self.name.replace("-", "_")

    @property
    def group(self) -> str:
        """The class of mistakes that it belongs to, by its module: "sdpa/causal"."""
        return self.make.__module__.partition(".faults.")[2].replace(".", "/")

    @property
    def when(self) -> str:
        """The class's docstring: a text on what the fault does and when it shows."""
        return (self.make.__doc__ or "").strip()


FAULTS: dict[str, Fault] = {}

#: Beginning of a source that is a path of a kernel: "path fa2-width-64".
PATH = "path"

Class = TypeVar("Class", bound=type[Model])


def fault(clause: str, title: str, *sources: str) -> Callable[[Class], Class]:
    """Register a subclass of a model that overrides a step; the fault is named after the class, in kebab case.

    Parameters
    ----------
    clause
        The clause that it breaks: "SDPA-9".
    title
        Description of the mistake, in the words of a diagnosis.
    sources
        Threads where it happened, by the names in trackers.txt: "mlx 2835, cf. flax PR 5591".

    Returns
    -------
    Callable
        The decorator, which returns the class unchanged.

    Raises
    ------
    ValueError
        For a second fault of the same name, or one without a source.
    """

    def register(make: Class) -> Class:
        name = kebab(make.__name__)
        if name in FAULTS or not sources:
            raise ValueError(f"fault {name}: registered twice, or without a source")
        FAULTS[name] = Fault(name, clause, title, tuple(", ".join(sources).split(", ")), make)
        return make

    return register


def kebab(name: str) -> str:
    """The name of a class in kebab case: "causal-bottom-right".

    Parameters
    ----------
    name
        A name in camel case.

    Returns
    -------
    str
        The name in kebab case, such as "causal-bottom-right".
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name).lower()


def faults_of(operator: str) -> list[Fault]:
    """The faults of one operator, in the order of the kill matrix.

    Parameters
    ----------
    operator
        Operator, such as "sdpa".

    Returns
    -------
    list[Fault]
        Empty for an operator without faults.
    """
    return [fault for fault in FAULTS.values() if fault.operator == operator]


def link(source: str) -> str:
    """The address of a source, or "" for one of the articles.

    Parameters
    ----------
    source
        A source as in the kill matrix: "pytorch 123456", "pytorch PR 123456", or an article.

    Returns
    -------
    str
        A web address.

    Raises
    ------
    KeyError
        For an unknown tracker or path.
    """
    tracker, _, number = source.removeprefix("cf. ").rpartition(" ")
    if tracker == "source":
        return ""
    if tracker == PATH:
        return kernel_paths()[number].link
    tracker, pull = tracker.removesuffix(" PR"), tracker.endswith(" PR")
    return f"https://github.com/{TRACKERS[tracker]}/{'pull' if pull else 'issues'}/{number}"


def cited(sources: Sequence[str]) -> str:
    """Sources as GitHub writes them, "owner/name#123, #124", or "article 001"; a path of a kernel stays unchanged.

    Parameters
    ----------
    sources
        As in the kill matrix: "pytorch 123456", "cf. pytorch PR 123456".

    Returns
    -------
    str
        Text for a message.
    """
    texts, before = [], ""
    for source in sources:
        tracker, _, number = source.removeprefix("cf. ").rpartition(" ")
        if tracker in ("source", PATH):
            texts.append(f"{tracker.replace('source', 'article')} {number}")
            continue
        repository = TRACKERS[tracker.removesuffix(" PR")]
        texts.append(f"{'' if repository == before else repository}#{number}")
        before = repository
    return ", ".join(texts)
