"""Results that were computed elsewhere from vectors, judged as ``pytest conformance`` judges what it runs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from conformance import bounds
from conformance.judging.judge import UNSUPPORTED_HINT, judge
from conformance.outcomes import Outcome, Result
from conformance.results import Writer, fingerprint
from conformance.run.terminal import executed, summary
from conformance.vectors.answers import answer
from conformance.vectors.errors import Unreadable
from conformance.vectors.index import Chosen, Entry, Key, read_index, read_vector
from conformance.vectors.recorded import recorded
from conformance.vectors.vector import default_profile
from impls.contract import Profile

#: What the result file says of machine and versions, of which nothing is known here.
ELSEWHERE = "elsewhere"

#: The same advice as for a function, in the words of a results folder.
HINT = 'Hint:     write a .json with "unsupported" and the reason for what the implementation does not have'

#: Cases without a result that are named before the list is cut.
LISTED = 6


@dataclass(frozen=True)
class Origin:
    """Whose results they are: the implementation's name, its device, and the precision profiles that it declares."""

    name: str
    device: str = ELSEWHERE
    profiles: Sequence[Profile] = ()

    def profile(self, dtype: str) -> Profile:
        """The profile that is declared for a dtype: the last one given that the dtype has, or the default (SDPA-25)."""
        declared = [profile for profile in self.profiles if profile in bounds.profiles(dtype)]
        return declared[-1] if declared else Profile(default_profile(dtype))


@dataclass(frozen=True)
class Checked:
    """What became of every chosen vector."""

    results: tuple[Result, ...]
    #: Those for which there is no result.
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
    """Judge the results of the chosen vectors, and write the result file if there is a path for it.

    Raises VectorError for the first file that cannot be used; the result file then has no footer.
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
    """What becomes of one vector, or None if there is no result of it."""
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
    given = ["check", str(vectors), str(answers), "--case", entry.case, "--dtype", entry.dtype]
    given += [part for profile in origin.profiles for part in ("--profile", profile.value)]
    command = f"python -m conformance {shlex.join(given)}"
    message = result.message.replace(UNSUPPORTED_HINT, HINT)
    head, rerun, _ = message.rpartition("\nRerun:    ")
    return replace(result, message=f"{head}{rerun}{command}") if rerun else result
