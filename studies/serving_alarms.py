"""False alarms in the forms that serve: random problems that correct variants of each form have to pass.

``python -m studies serving_alarms --page`` takes minutes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attention_conformance.conformance.cases.base import AnyCase
from attention_conformance.conformance.evidence.serving_variants import SERVING, alarm
from attention_conformance.conformance.properties.serving import FORMS, drawn, of_rng
from attention_conformance.impls.contract import DTYPES
from studies.common import Study, markdown, sentence

PROBLEMS = 20_000

SEED = 122


def problem(index: int) -> tuple[str, AnyCase, str]:
    """The problem of an index, always the same one: its form, the case, and its dtype."""
    forms, dtypes = list(FORMS), list(DTYPES)
    form = forms[index % len(forms)]
    case = drawn(of_rng(np.random.default_rng((SEED, index))), form).case()
    return form, case, dtypes[index // len(forms) % len(dtypes)]


def measure(problems: int) -> dict[str, Any]:
    """Judge every random problem by every variant of its form that takes its dtype."""
    counts: dict[str, dict[str, int]] = {form: dict.fromkeys(variants, 0) for form, variants in SERVING.items()}
    alarms = []
    for index in range(problems):
        form, case, dtype = problem(index)
        for name, variant in SERVING[form].items():
            if dtype in variant.profiles and not (name == "padded" and not case.shape.sk):
                counts[form][name] += 1
                why = alarm(form, variant.function, case, dtype, variant.profiles[dtype])
                alarms += [[index, form, dtype, name, why]] if why else []
    return {"problems": problems, "counts": counts, "alarms": alarms, "threads": 1}


def table(found: Mapping[str, Any]) -> str:
    """One row a variant."""
    rows = [
        (form, f"`{name}`", f"{count:,}", sum(a[1] == form and a[3] == name for a in found["alarms"]))
        for form, counts in found["counts"].items()
        for name, count in counts.items()
    ]
    total = sum(sum(counts.values()) for counts in found["counts"].values())
    words = f"{found['problems']:,} random problems, judged {total:,} times: {len(found['alarms'])} false alarms"
    return f"{markdown(('form', 'correct variant', 'problems', 'false alarms'), rows)}\n\n{sentence(found, words)}"


STUDY = Study(
    "serving_alarms",
    "Random problems of the forms that serve, which correct variants have to pass.",
    measure,
    {"conformance/evidence/page.md": table},
    {"--problems": {"type": int, "default": PROBLEMS, "metavar": "N", "help": "default: %(default)s"}},
)
