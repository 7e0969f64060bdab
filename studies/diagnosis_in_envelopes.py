"""Diagnosis within envelopes: how often a fault is named first where a kernel takes only some sizes.

Every N-th of the faults that are caught in an envelope, by its kill matrix, is called on the smallest cases that catch
it, at the sizes of the envelope, and diagnosed from those and from cases that it passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attention_conformance.conformance.cases import asked_serving_cases, every_case
from attention_conformance.conformance.cases.envelopes import KINDS, Kind
from attention_conformance.conformance.cases.fit import dtypes_for, fit
from attention_conformance.conformance.diagnosis.explanation import Passed
from attention_conformance.conformance.diagnosis.match import diagnose
from attention_conformance.conformance.faults import FAULTS, envelopes
from attention_conformance.conformance.faults.trials import Failed, explains, trial
from attention_conformance.impls.contract import Implementation
from studies.common import Study, Unfit, markdown, sentence

#: Most failures and passed cases of a fault, and its largest case, in elements of arguments, if there are smaller ones.
FAILURES, PASSES, LARGEST = 5, 20, 1 << 17

#: Largest case of kernels that serve, whose caches have unused pages.
LARGEST_CACHE = 1 << 20


def first(name: str, caught: Mapping[str, str], kind: Kind) -> tuple[str, ...] | None:
    """First name for a fault: its own where it fits the same failures as the named one; None without failures."""
    make, plugged = FAULTS[name].make, Implementation("plugged", "none:none")
    failed, passed = [], []
    known_cases = [*every_case().values(), *(asked_serving_cases().values() if kind.serves else ())]
    own = (c for c in known_cases if c.operator == make.operator and not c.invalid)
    inside = [c for c in (fit(c, kind.envelope) for c in own if kind.takes(c)) if not c.unfit]
    largest = max(
        LARGEST_CACHE if kind.serves else LARGEST, 2 * min((c.size[0] for c in inside if c.size[0]), default=0)
    )
    for fitted in inside:
        if fitted.size[0] > largest:
            continue
        known = caught.get(fitted.name, "").split()
        for dtype in dtypes_for(fitted, kind.dtypes):
            profile = plugged.profile(dtype)
            if dtype in known:
                found = trial(make, fitted, dtype, profile)
                if found.verdict.failure is not None:
                    failed.append(Failed(fitted, dtype, profile, found.verdict.failure, found.reply))
            elif not known:
                passed.append(Passed(fitted, dtype, profile))
    failed = sorted(failed, key=lambda f: f.size)[:FAILURES]
    if not failed:
        return None
    said = diagnose(failed, sorted(passed, key=lambda p: p.case.size)[:PASSES], pairs=False)
    if not said:
        return ()
    best = said[0]
    same = len(best.faults) == 1 and best.fits == frozenset(f for f in failed if explains(make, f))
    return (name,) if same and best.fits else best.names


def measure(every: int, envelope: Sequence[str]) -> dict[str, Any]:
    """Every N-th fault of some envelopes, by default of all that are published; other envelopes keep their rows."""
    published = {each["name"]: each["faults"] for each in envelopes.published()["envelopes"]}
    if unknown := set(envelope) - set(published):
        raise Unfit(f"no kill matrix is published of {', '.join(sorted(unknown))}")
    kept: dict[str, Any] = STUDY.kept() if envelope else {"every": every, "envelopes": []}
    if kept["every"] != every:
        raise Unfit(f"what is kept is of every {kept['every']}th fault")
    rows = {row["envelope"]: row for row in kept["envelopes"]}
    for name in envelope or published:
        faults = [n for n, f in published[name].items() if f.get("caught") and n in FAULTS]
        asked = {n: first(n, published[name][n]["caught"], KINDS[name]) for n in faults[::every]}
        diagnosed = {n: names for n, names in asked.items() if names is not None}
        rows[name] = {
            "envelope": name,
            "faults": len(faults),
            "asked": len(diagnosed),
            "first": sum(names == (n,) for n, names in diagnosed.items()),
            "none": sorted(n for n, names in diagnosed.items() if not names),
            "other": {n: list(names) for n, names in diagnosed.items() if names and names != (n,)},
        }
    return {"every": every, "envelopes": [rows[name] for name in KINDS if name in rows], "threads": 1}


def table(found: Mapping[str, Any]) -> str:
    """A row for each envelope."""
    rows = [
        (
            one["envelope"],
            one["faults"],
            one["asked"],
            f"{one['first']} ({one['first'] / max(1, one['asked']):.0%})",
            ", ".join(f"`{n}` as {' and '.join(names)}" for n, names in one["other"].items()) or "–",
            ", ".join(f"`{n}`" for n in one["none"]) or "–",
        )
        for one in found["envelopes"]
    ]
    heads = ("envelope", "faults caught there", "asked", "named first", "named as another", "not named")
    return "\n\n".join([markdown(heads, rows, left=(0, 4, 5)), sentence(found, f"every {found['every']}th fault")])


def _whole(every: int, envelope: Sequence[str]) -> None:
    """The page needs at least a tenth of the faults."""
    if every > 10:
        raise Unfit("--page needs at least every tenth fault")


STUDY = Study(
    "diagnosis_in_envelopes",
    "How often the diagnosis names a fault first within the envelopes of kernels.",
    measure,
    {"conformance/DIAGNOSIS.md": table},
    {
        "--every": {"type": int, "default": 8, "metavar": "N", "help": "take every N-th fault (default: %(default)s)"},
        "--envelope": {"action": "append", "default": [], "metavar": "NAME", "help": "of this one; may be repeated"},
    },
    _whole,
)
