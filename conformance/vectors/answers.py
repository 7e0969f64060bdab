"""What came back for a vector from elsewhere: results as arrays, or a word and a reason, as a reply to be judged."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np
from msgspec import Struct

from conformance.strict import plain
from conformance.vectors.documents import inside, parse, read, typed
from conformance.vectors.errors import Repeated
from conformance.vectors.index import Entry
from conformance.vectors.tensors import decode
from conformance.vectors.vector import Vector
from impls.calls import Reply, same_bits


class Words(Struct, forbid_unknown_fields=True):
    """The JSON in the place of arrays."""

    outcome: Literal["unsupported", "error"]
    reason: str


#: The status of a reply by what the JSON says.
OUTCOMES = {"unsupported": "unsupported", "error": "raised"}


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
    """Arrays as a reply: results, those of further calls (``output.2``), and inputs after the call (``input.q``).

    Results that are missing, or too many, are an error of the implementation, as they are of a function.
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
