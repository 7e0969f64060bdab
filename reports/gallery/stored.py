"""Stored results of the gallery: the record and the results of each entry, and of its previous version."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from attention_conformance.conformance.judging.outcomes import Result
from attention_conformance.conformance.results import by_column
from attention_conformance.impls import compressed
from attention_conformance.impls.contract import InputError
from attention_conformance.impls.gallery import MANIFEST, Entry

if TYPE_CHECKING:  # a run needs no library of the pages
    from attention_conformance.reports.model.model import Model

#: Folder of the suite's published gallery, and the folder in it for the results of a previous version.
PUBLISHED = MANIFEST.parents[2] / "reports" / "published" / "gallery"
BEFORE = "before"

#: Bytes of the largest record that is read.
_LARGEST = 1 << 20

#: Options of ``check`` where none are given.
DEFAULT = ("--dtype=float32",)

#: Lines of a message that hold only on the machine that made it, and hints for the author of the function.
_OF_THE_MACHINE = re.compile(r"^(?:(?:Rerun|Script|Hint):.*|[ ~^]+)(?:\n|\Z)", re.MULTILINE)


class Status(Enum):
    """Status of an entry."""

    JUDGED = "judged"
    NOT_INSTALLED = "not installed"
    CUT_OFF = "cut off"
    BROKEN = "could not be judged"


#: Statuses that have results.
WITH_RESULTS = (Status.JUDGED, Status.CUT_OFF)


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Record of an entry: its status, and the requirements, adapter and options."""

    name: str
    status: Status
    requires: tuple[str, ...]
    adapter: Annotated[str, msgspec.Meta(description="SHA-256 of its file")]
    options: Annotated[tuple[str, ...], msgspec.Meta(description="of `check`")] = DEFAULT
    seconds: float = 0.0
    versions: dict[str, str] = {}
    message: str = ""


def record(work: Path, name: str) -> Record | None:
    """The record of an entry in a folder; None where there is none.

    Parameters
    ----------
    work
        The folder.
    name
        Name of the entry.

    Returns
    -------
    Record | None
        Versions, environment and status.

    Raises
    ------
    InputError
        For a damaged record.
    """
    path = file(work, f"{name}.json")
    try:
        return msgspec.json.decode(compressed.read(path, _LARGEST), type=Record)
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, compressed.CompressedError) as error:
        raise InputError(f"{path}: {error}") from None


def file(work: Path, name: str) -> Path:
    """Path of the compressed file that is kept, or else of the file that a run leaves."""
    kept = work / f"{name}{compressed.SUFFIX}"
    return kept if kept.exists() else work / name


def model(known: Mapping[str, Entry], work: Path) -> tuple[dict[str, Record], Model]:
    """Records of the entries of a folder, and their results by the names of the manifest.

    Parameters
    ----------
    known
        Entries of the manifest by their names.
    work
        The folder.

    Returns
    -------
    tuple[dict[str, Record], Model]
        Records by name, and the model of a report.

    Raises
    ------
    InputError
        For a record or a result file that cannot be used, and where nothing was judged.
    """
    from attention_conformance.conformance.spec.clauses import clauses
    from attention_conformance.reports.input.read import read
    from attention_conformance.reports.model.model import Model

    found = {name: each for name in known if (each := record(work, name))}
    judged = [name for name, each in found.items() if _has_results(work, each)]
    if not judged:
        raise InputError(f"{work}: no entry of the gallery was judged there")
    records = read([file(work, f"{name}.jsonl") for name in judged])
    names = {known[name].target: name for name in judged}
    renamed = (replace(r, implementation=names.get(r.implementation, r.implementation)) for r in records.results)
    return found, Model(replace(records, results=tuple(renamed)), clauses())


def before(work: Path, name: str) -> tuple[Record, tuple[Result, ...]] | None:
    """The record and the results of an entry's previous version; None where there was none."""
    from attention_conformance.reports.input.read import read

    found = record(work / BEFORE, name)
    if found is None or not _has_results(work / BEFORE, found):
        return None
    return found, read([file(work / BEFORE, f"{name}.jsonl")]).results


def _has_results(work: Path, found: Record) -> bool:
    return found.status in WITH_RESULTS and file(work, f"{found.name}.jsonl").exists()


def keep(names: Mapping[str, Entry], work: Path, folder: Path = PUBLISHED) -> None:
    """Keep the entries' results of a work folder, compressed: messages of failures only, and no times or shares.

    Kept results of other versions of the packages are moved to the folder ``before`` and replace what is there.

    Parameters
    ----------
    names
        Entries of the manifest by their names.
    work
        Folder of the runs, with ``NAME.json`` and ``NAME.jsonl``.
    folder
        Folder where they are kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        new, old = record(work, name), record(folder, name)
        if new is None:
            continue
        if old and new.versions != old.versions and _has_results(folder, old):
            (folder / BEFORE).mkdir(exist_ok=True)
            for ending in ("json", "jsonl"):
                kept = file(folder, f"{name}.{ending}")
                kept.replace(folder / BEFORE / kept.name)
        compressed.write(folder / f"{name}.json{compressed.SUFFIX}", msgspec.json.encode(new))
        target = folder / f"{name}.jsonl{compressed.SUFFIX}"
        if _has_results(work, new):
            lines = (work / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
            records = by_column(_short(json.loads(line)) for line in lines)
            short = "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records)
            compressed.write(target, short.encode())
        else:
            target.unlink(missing_ok=True)


def _short(line: dict[str, Any]) -> dict[str, Any]:
    """A line of a result file without times and shares of bounds; only failures keep a message and a reason."""
    if line["kind"] == "footer":
        return line | {"diagnoses": [_diagnosis(each) for each in line.get("diagnoses", ())]}
    if line["kind"] != "result":
        return line
    message = without_machine(line["message"]) if line["outcome"] == "failed" else ""
    short: dict[str, Any] = {"message": message, "share": None, "meets": [], "run_seconds": 0.0, "prepare_seconds": 0.0}
    return line | short | ({"reason": ""} if line["outcome"] != "failed" else {})


def _diagnosis(one: dict[str, Any]) -> dict[str, Any]:
    """A diagnosis without the machine's paths, which the title of an unexplained exception may quote."""
    explanations = [each | {"title": without_machine(each["title"])} for each in one["explanations"]]
    return one | {"explanations": explanations}


def without_machine(message: str) -> str:
    """A message without paths of the machine that it was made on: files keep only their names; commands are dropped.

    A path in a library's own sources, which is relative, stays.

    Digits of a path may be written as "…", as in the words of an exception that several calls share.
    """
    text = _OF_THE_MACHINE.sub("", message)
    return re.sub(r"(?<![\w.…-])(?:/[\w.@+~…-]+)+/([\w.@+~…-]+)", r"\1", text).rstrip()
