"""The judge's verdicts on faults, each given once: most faults return the same bits on most cases."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from conformance.cases import AnyCase
from conformance.judging.judge import judge
from conformance.outcomes import Failure, Outcome, Result
from impls.calls import Reply


class Verdict(NamedTuple):
    """What a result says, without its words."""

    outcome: Outcome
    failure: Failure | None


#: By case, dtype, profile, and a digest of the reply.
_GIVEN: dict[tuple[str, str, str | None, bytes], Verdict] = {}


def verdict(reply: Reply, case: AnyCase, blank: Result) -> Verdict:
    """What the judge says of a reply to a case; it depends on what is in the key, and on nothing else."""
    key = (case.name, blank.dtype, blank.profile, _digest(reply))
    if key not in _GIVEN:
        result = judge(reply, case, blank)
        _GIVEN[key] = Verdict(result.outcome, result.failure)
    return _GIVEN[key]


def _digest(reply: Reply) -> bytes:
    """All of a reply that a verdict may depend on."""
    digest = hashlib.blake2b(digest_size=16)
    words = (reply.status, reply.modified, reply.unequal, reply.changed)
    arrays = {name: (str(array.dtype), array.shape) for name, array in reply.results.items()}
    digest.update(repr((words, arrays)).encode())
    for array in reply.results.values():
        digest.update(array.tobytes())
    return digest.digest()
