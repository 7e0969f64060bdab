"""False alarms in the forms that serve: random problems that correct variants of each form must pass.

``python -m studies serving_alarms --page`` takes most of an hour; ``--seconds`` ends it sooner, the sentence says how
far it came, and with ``--more`` the next run continues from there, for one ``--group`` or for all.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from attention_conformance.conformance.cases.base import AnyCase
from attention_conformance.conformance.evidence.serving_variants import SERVING, verdict
from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.conformance.properties.serving import drawn, of_rng
from attention_conformance.impls.contract import DTYPES
from studies.common import Study, Unfit, markdown, measured, sentence

#: The forms whose problems are numbered together, in turn, so that the results of one group stay.
GROUPS = {
    "packs": ("varlen", "varlen_grad", "paged", "quantised", "merge"),
    "masks": ("blocks", "trees", "latent"),
    "gradients of merges": ("merge_grad",),
}

PROBLEMS = {"packs": 20_000, "masks": 12_000, "gradients of merges": 4_000}

#: Seeds of each group: another seed means other problems.
SEEDS = {"packs": (122,), "masks": (122, 1), "gradients of merges": (122, 2)}


def problem(index: int, group: str = "packs") -> tuple[str, AnyCase, str]:
    """The problem of an index, always the same one: its form, the case, and its dtype."""
    forms, dtypes, (seed, *rest) = GROUPS[group], list(DTYPES), SEEDS[group]
    form = forms[index % len(forms)]
    case = drawn(of_rng(np.random.default_rng((seed, index, *rest))), form).case()
    return form, case, dtypes[index // len(forms) % len(dtypes)]


def judge(group: str, first: int, last: int, seconds: float) -> dict[str, Any]:
    """Judge the problems of a group from ``first`` to before ``last`` by every variant that takes their dtype."""
    variants = {form: SERVING[form] for form in GROUPS[group]}
    counts = {form: dict.fromkeys(each, 0) for form, each in variants.items()}
    shares = {form: dict.fromkeys(each, 0.0) for form, each in variants.items()}
    alarms, end, index = [], time.perf_counter() + seconds, first
    while index < last and time.perf_counter() < end:
        form, case, dtype = problem(index, group)
        for name, variant in variants[form].items():
            if dtype in variant.profiles and not (name == "padded" and not case.shape.sk):
                found = verdict(form, variant.function, case, dtype, variant.profiles[dtype])
                counts[form][name] += 1
                if found.outcome is Outcome.PASSED:
                    shares[form][name] = max(shares[form][name], float(f"{found.share or 0.0:.3g}"))
                else:
                    alarms.append([index, form, dtype, name, found.reason])
        index += 1
    return {"problems": index - first, "counts": counts, "shares": shares, "alarms": alarms, "threads": 1}


def merge_records(before: Mapping[str, Any] | None, run: Mapping[str, Any]) -> dict[str, Any]:
    """Records of a group with one more run added; ``runs`` have the time, place and number of problems of each."""
    counted = ("counts", "shares", "alarms")
    circumstances = {name: value for name, value in run.items() if name not in counted}
    if before is None:
        return {name: run[name] for name in ("problems", *counted)} | {"runs": [circumstances]}
    counts = {f: {n: c + before["counts"][f][n] for n, c in each.items()} for f, each in run["counts"].items()}
    shares = {
        form: {name: max(share, before["shares"][form][name]) for name, share in each.items()}
        for form, each in run["shares"].items()
        if before["shares"]
    }
    return {
        "problems": before["problems"] + run["problems"],
        "counts": counts,
        "shares": shares,
        "alarms": [*before["alarms"], *run["alarms"]],
        "runs": [*before["runs"], circumstances],
    }


def measure(
    problems: int | None = None, group: str | None = None, seconds: float = 7200.0, more: bool = False
) -> dict[str, Any]:
    """Judge random problems of a group, or of all; with ``more`` those after the kept ones, which count."""
    groups: dict[str, Any] = dict(STUDY.kept()["groups"]) if more else {}
    end = time.perf_counter() + seconds
    for name in [group] if group else GROUPS:
        before, last = groups.get(name), problems or PROBLEMS[name]
        first = before["problems"] if before else 0
        left = end - time.perf_counter()
        if first < last and left > 0:
            run = measured(judge, group=name, first=first, last=last, seconds=left)
            groups[name] = merge_records(before, run)
    return {"groups": groups, "threads": 1}


def whole(group: str | None = None, more: bool = False, **_: Any) -> None:
    """Refuse to keep one group without the others."""
    if group and not more:
        raise Unfit("--page with --group alone would drop the other groups that are kept; --more keeps them")


def table(found: Mapping[str, Any]) -> str:
    """One row for each variant, and one sentence for each group."""
    rows, sentences = [], []
    for kept in found["groups"].values():
        for form, counts in kept["counts"].items():
            for name, count in counts.items():
                share = f"{kept['shares'][form][name]:g}" if kept["shares"] else "–"
                alarms = sum(a[1] == form and a[3] == name for a in kept["alarms"])
                rows.append((form, f"`{name}`", f"{count:,}", share, alarms))
        total = sum(sum(counts.values()) for counts in kept["counts"].values())
        words = f"{kept['problems']:,} random problems of {', '.join(kept['counts'])}, judged {total:,} times"
        runs = kept["runs"]
        words += f" in {len(runs)} runs" if len(runs) > 1 else ""
        loads = [runs[0]["load_average"][0], runs[-1]["load_average"][1]]
        last = runs[-1] | {"load_average": loads}
        sentences.append(sentence(last, f"{words}: {len(kept['alarms'])} false alarms"))
    heads = ("form", "correct variant", "problems", "largest share", "false alarms")
    return "\n\n".join([markdown(heads, rows), *sentences])


STUDY = Study(
    "serving_alarms",
    "Random problems of the forms that serve, which correct variants have to pass.",
    measure,
    {"conformance/evidence/page.md": table},
    {
        "--problems": {"type": int, "metavar": "N", "help": f"of each group; default: {PROBLEMS}"},
        "--group": {"choices": list(GROUPS), "help": "of this one alone"},
        "--more": {"action": "store_true", "help": "go on behind the problems that are kept"},
        "--seconds": {"type": float, "default": 7200.0, "help": "after so many it ends; default: %(default)s"},
    },
    whole,
)
