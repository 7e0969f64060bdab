"""Diagnosis of faults called as implementations: whether each is named first, on all small cases of its operator.

The test of the diagnosis runs every fault on the few cases that catch it; here a fault is treated as a user's function:
it is judged on every small case, in every dtype, and diagnosed from all its failures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.diagnosis.explanation import Passed, combined
from attention_conformance.conformance.diagnosis.match import diagnose
from attention_conformance.conformance.faults import FAULTS, Fault
from attention_conformance.conformance.faults.trials import Failed, explains, trial
from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.impls.contract import Implementation
from studies.common import Study, Unfit, markdown, sentence
from studies.diagnosis import DTYPES, LARGEST

#: The clauses whose faults the page has.
CLAUSES = ("SDPA-42", "SDPA-43", "SDPA-44")


def judged(fault: Fault) -> tuple[list[Failed], list[Passed]]:
    """The failures and the passed cases of a fault on the small cases of its operator."""
    plugged = Implementation("plugged", "none:none", operator=fault.operator)
    failed, passed = [], []
    for case in every_case().values():
        if case.operator != fault.operator or case.size[0] > LARGEST or case.invalid:
            continue
        for dtype in (d for d in case.dtypes if d in DTYPES):
            profile = plugged.profile(dtype)
            found = trial(fault.make, case, dtype, profile)
            if found.verdict.failure is not None:
                failed.append(Failed(case, dtype, profile, found.verdict.failure, found.reply))
            elif found.verdict.outcome is Outcome.PASSED:
                passed.append(Passed(case, dtype, profile))
    return failed, passed


def named(fault: Fault) -> dict[str, Any]:
    """Explanations of a fault by the diagnosis, and whether the first is the fault, or gives the same results."""
    failed, passed = judged(fault)
    said = diagnose(failed, passed, pairs=False)
    first = said[0] if said else None
    alike = (
        first is not None and (make := combined(first.faults)) is not None and all(explains(make, f) for f in failed)
    )
    return {
        "fault": fault.name,
        "title": fault.title,
        "clause": fault.clause,
        "failed": len(failed),
        "first": first is not None and (first.names == (fault.name,) or alike),
        "said": [each.title for each in said],
    }


def measure(clause: Sequence[str]) -> dict[str, Any]:
    """The faults of some clauses, by default of all that the page has; other clauses keep their rows."""
    if unknown := set(clause) - set(CLAUSES):
        raise Unfit(f"the page has no faults of {', '.join(sorted(unknown))}")
    kept: Sequence[dict[str, Any]] = STUDY.kept()["faults"] if clause else ()
    asked = clause or CLAUSES
    rows = [named(fault) for fault in FAULTS.values() if fault.operator == "sdpa" and fault.clause in asked]
    rows += [row for row in kept if row["clause"] not in asked]
    order = list(FAULTS)
    return {"faults": sorted(rows, key=lambda row: order.index(row["fault"])), "threads": 1}


def table(found: Mapping[str, Any]) -> str:
    """A row for each fault."""
    rows = [
        (
            row["clause"],
            f"`{row['fault']}`",
            row["failed"],
            "first" if row["first"] else "no",
            "; ".join(row["said"][:3]) or "nothing",
        )
        for row in found["faults"]
    ]
    first = sum(row["first"] for row in found["faults"])
    heads = ("clause", "fault", "failures", "named", "what the diagnosis says")
    text = f"{first} of {len(found['faults'])} named first ({first / max(1, len(found['faults'])):.0%})"
    return "\n\n".join([markdown(heads, rows, left=(0, 1, 3, 4)), sentence(found, text)])


STUDY = Study(
    "diagnosis_of_faults",
    "Whether a fault that is called as an implementation is named first, on all small cases.",
    measure,
    {"conformance/DIAGNOSIS.md": table},
    {"--clause": {"action": "append", "default": [], "metavar": "CLAUSE", "help": "of this one; may be repeated"}},
)
