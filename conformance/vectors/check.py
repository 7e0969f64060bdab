"""Check of results that were computed elsewhere from vectors: read as replies, and judged as in a run."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
from msgspec import Struct

from attention_conformance.conformance.bounds import sdpa as bounds
from attention_conformance.conformance.cases import AnyCase, Case, every_case
from attention_conformance.conformance.cases.store import RANDOM
from attention_conformance.conformance.judging.judge import UNSUPPORTED_HINT, judge
from attention_conformance.conformance.judging.outcomes import Outcome, Result
from attention_conformance.conformance.results import Writer, fingerprint
from attention_conformance.conformance.run.terminal import executed, summary
from attention_conformance.conformance.vectors.files import Repeated, decode, inside, parse, read, typed
from attention_conformance.conformance.vectors.index import Chosen, Entry, Key, read_index, read_vector
from attention_conformance.conformance.vectors.vector import Vector, default_profile
from attention_conformance.impls.calls import Reply, Status, same_bits
from attention_conformance.impls.contract import Profile
from attention_conformance.impls.strict import Unreadable, plain

#: Machine and versions in the result file, as they are unknown here.
ELSEWHERE = "elsewhere"

#: The same advice as for a function, in the words of a results folder.
HINT = 'Hint:     write a .json with "unsupported" and the reason for what the implementation does not have'

#: Cases without a result that are named before the list is cut.
LISTED = 6

#: The status of a reply, by the JSON's outcome.
OUTCOMES: dict[str, Status] = {"unsupported": "unsupported", "error": "raised"}


class Words(Struct, forbid_unknown_fields=True):
    """The JSON that replaces arrays."""

    outcome: Literal["unsupported", "error"]
    reason: str


def answer(folder: Path, entry: Entry, vector: Vector) -> Reply | None:
    """The reply that the results folder has for a vector, or None if it has none.  Raises VectorError."""
    stem = str(PurePosixPath(entry.tensors.file).with_suffix(""))
    arrays, words = f"{stem}.safetensors", f"{stem}.json"
    there = [name for name in (arrays, words) if inside(folder, name).exists()]
    if len(there) == 2:
        raise Repeated(f"{arrays} and {words} are both there, and only one can be the result")
    if not there:
        return None
    if there == [words]:
        said = typed(parse(read(folder, words), words), Words, words)
        return Reply(OUTCOMES[said.outcome], text=plain(said.reason))
    return reply_of(decode(read(folder, arrays), arrays), vector)


def reply_of(arrays: dict[str, np.ndarray], vector: Vector) -> Reply:
    """Arrays as a reply: results, results of further calls (``output.2``), and inputs after the call (``input.q``).

    Missing or extra results are an error of the implementation, as for a function.
    """
    if vector.about.refused:
        return Reply("returned", arrays)
    names = tuple(vector.about.results)
    again = {f"{name}.{call}": name for call in range(2, vector.about.repeats + 1) for name in names}
    missing = [name for name in (*names, *again) if name not in arrays]
    unknown = [name for name in arrays if name not in (*names, *again) and not _is_input(name, vector)]
    if missing:
        return Reply("raised", text=f"no result {', '.join(missing)}")
    if unknown:
        return Reply("raised", text=plain(f"results that were not asked for: {', '.join(sorted(unknown))}"))
    after = {name: array for name, array in arrays.items() if _is_input(name, vector)}
    return Reply(
        "returned",
        {name: arrays[name] for name in names},
        modified=tuple(n.partition(".")[2] for n, array in after.items() if not same_bits(array, vector.arrays[n])),
        unequal=tuple(dict.fromkeys(n for key, n in again.items() if not same_bits(arrays[key], arrays[n]))),
    )


def _is_input(name: str, vector: Vector) -> bool:
    return name.startswith("input.") and name in vector.arrays


# A vector as a case, so that it is judged like every case, with its files' data instead of the suite's own.


@dataclass(frozen=True, eq=False)
class Recorded(AnyCase):
    """A case whose inputs, expected results and bounds are those of a vector.  Made by ``recorded``."""

    vector: Vector | None = None

    def make_inputs(self, dtype: str) -> Any:
        """The recorded inputs."""
        about, arrays = self._about, self._arrays("input")
        keywords = {name: arrays[name] for name in about.keywords} | dict(about.options)
        return SimpleNamespace(arrays={name: arrays[name] for name in about.arguments}, keywords=keywords)

    def make_expected(self, inputs: Any) -> Any:
        """The recorded results; for sdpa also the mean of v, to describe a wrong output."""
        results = self._arrays("expected")
        values = (
            {"v": _mean_value(inputs.arrays | inputs.keywords, results["output"])}
            if self.operator == Case.operator
            else {}
        )
        return SimpleNamespace(**results, **values)

    def make_bound(self, inputs: Any, expected: Any, dtype: str, profile: Profile) -> Any:
        """The recorded bounds under a profile."""
        return SimpleNamespace(**self._arrays(f"bound.{profile.value}"))

    def axes(self, result: str) -> tuple[str, ...]:
        """Names of the axes of a result."""
        return self._about.results[result].axes

    def results(self) -> tuple[str, ...]:
        """Names of the requested results, in order."""
        return tuple(self._about.results)

    @property
    def _about(self) -> Any:
        assert self.vector is not None
        return self.vector.about

    def _arrays(self, kind: str) -> dict[str, np.ndarray]:
        """The arrays of a kind by the rest of their names."""
        assert self.vector is not None
        return {n.removeprefix(f"{kind}."): a for n, a in self.vector.arrays.items() if n.startswith(f"{kind}.")}

    __eq__, __hash__ = object.__eq__, object.__hash__  # two folders may have cases of one name with different arrays


def recorded(vector: Vector) -> Recorded:
    """The case of a vector."""
    about = vector.about
    return _kind(about.operator)(
        about.case,
        about.clauses,
        about.why,
        shape=None,
        options=about.options,
        dtypes=(about.dtype,),
        memory=about.memory,
        repeats=about.repeats,
        invalid=about.refused,
        after=about.after,
        store=RANDOM,
        vector=vector,
    )


@functools.cache
def _kind(operator: str) -> type[Recorded]:
    """The class for an operator, with the blame of the suite's own cases."""
    blame = next(case.blame for case in every_case().values() if case.operator == operator)
    return type("Recorded", (Recorded,), {"operator": operator, "blame": blame})


def _mean_value(inputs: dict[str, np.ndarray], output: np.ndarray) -> np.ndarray:
    """The mean of all values as the value of one key, with one head per query head, in float64.

    There is no key where the values do not fit the output.  The values themselves are not repeated for each head: a
    vector may be from anywhere, and a file of a few megabytes can name as many heads as keys.
    """
    none = np.zeros((1, 1, 0, 1))
    parts = [inputs[name] for name in ("past_value", "v") if name in inputs]
    if output.ndim != 4 or not output.size or not all(p.ndim == 4 and p.shape[1] for p in parts):
        return none
    b, heads, _, width = output.shape
    if any(p.shape[0] != b or p.shape[3] != width or heads % p.shape[1] for p in parts):
        return none
    keys = sum(p.shape[2] for p in parts)
    if not keys:
        return none
    with np.errstate(all="ignore"):  # NaN and infinity are ordinary values here
        sums = [np.repeat(p.astype(np.float64).sum(2, keepdims=True), heads // p.shape[1], axis=1) for p in parts]
        return np.asarray(sum(sums) / keys)


@dataclass(frozen=True)
class Origin:
    """Origin of the results: the implementation's name, its device, and the precision profiles that it declares."""

    name: str
    device: str = ELSEWHERE
    profiles: Sequence[Profile] = ()

    def profile(self, dtype: str) -> Profile:
        """The profile that is declared for a dtype: the last one given that the dtype has, or the default (SDPA-25)."""
        declared = [profile for profile in self.profiles if profile in bounds.profiles(dtype)]
        return declared[-1] if declared else Profile(default_profile(dtype))


@dataclass(frozen=True)
class Checked:
    """Results of every chosen vector."""

    results: tuple[Result, ...]
    #: Vectors for which there is no result.
    not_run: tuple[Key, ...]

    @property
    def right(self) -> bool:
        """Whether every chosen vector has a result, none failed, and something was really computed."""
        failed = any(result.outcome is Outcome.FAILED for result in self.results)
        return not failed and not self.not_run and executed(self.results) > 0

    def __str__(self) -> str:
        parts = [result.message for result in self.results if result.outcome is Outcome.FAILED]
        lines = [summary(self.results, {})] if self.results else []
        if self.not_run:
            named = ", ".join(" ".join(key) for key in self.not_run[:LISTED])
            more = ", …" if len(self.not_run) > LISTED else ""
            total = len(self.not_run) + len(self.results)
            lines.append(f"not run: {len(self.not_run)} of {total}, which have no result ({named}{more})")
        if not executed(self.results):
            lines.append("FAILED: nothing was executed, so nothing is known")
        return "\n\n".join([*parts, "\n".join(lines)])


def check(vectors: Path, answers: Path, chosen: Chosen, origin: Origin, path: Path | None) -> Checked:
    """Judge results of the chosen vectors.

    Parameters
    ----------
    vectors, answers
        The folder that ``export`` wrote, and the folder of results, in files named as the vectors.
    path
        Path of the result file; None for none.

    Raises
    ------
    VectorError
        For the first file that cannot be used; the result file then has no footer.
    """
    if not answers.is_dir():
        raise Unreadable(f"{answers} is not a folder of results")
    entries = {entry.key: entry for entry in read_index(vectors).vectors}
    keys = chosen.of(entries)
    if path is None:
        return _judged(vectors, answers, [entries[key] for key in keys], origin, None)
    writer = _writer(path, origin, keys)
    with writer:
        checked = _judged(vectors, answers, [entries[key] for key in keys], origin, writer)
        writer.close(complete=not checked.not_run)
    return checked


def _writer(path: Path, origin: Origin, keys: Sequence[Key]) -> Writer:
    dtypes = dict.fromkeys(dtype for _, _, dtype in keys)
    header = fingerprint() | {
        "machine": ELSEWHERE,
        "system": ELSEWHERE,
        "python": ELSEWHERE,
        "versions": {origin.name: ELSEWHERE},
        "not_installed": [],
        "profiles": {f"{origin.name}/{dtype}": origin.profile(dtype).value for dtype in dtypes},
    }
    try:
        return Writer(path, header)
    except OSError as error:
        raise Unreadable(f"{path} cannot be written: {error.strerror or error}") from None


def _judged(vectors: Path, answers: Path, entries: Sequence[Entry], origin: Origin, writer: Writer | None) -> Checked:
    results, not_run = [], []
    for entry in entries:
        result = _result(vectors, answers, entry, origin)
        if result is None:
            not_run.append(entry.key)
            continue
        results.append(result)
        if writer is not None:
            writer.write(result)
    return Checked(tuple(results), tuple(not_run))


def _result(vectors: Path, answers: Path, entry: Entry, origin: Origin) -> Result | None:
    """Result of one vector, or None if there is none."""
    vector = read_vector(vectors, entry)
    reply = answer(answers, entry, vector)
    if reply is None:
        return None
    case = recorded(vector)
    blank = Result(
        implementation=origin.name,
        device=origin.device,
        dtype=entry.dtype,
        case=entry.case,
        clauses=case.clauses,
        outcome=Outcome.PASSED,
        profile=origin.profile(entry.dtype).value,
    )
    result = judge(reply, case, blank)
    given = ["check-vectors", str(vectors), str(answers), "--case", entry.case, "--dtype", entry.dtype]
    given += [part for profile in origin.profiles for part in ("--profile", profile.value)]
    command = f"attention-conformance {shlex.join(given)}"
    message = result.message.replace(UNSUPPORTED_HINT, HINT)
    head, rerun, _ = message.rpartition("\nRerun:    ")
    return replace(result, message=f"{head}{rerun}{command}") if rerun else result
