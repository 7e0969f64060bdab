"""False alarms at the sizes of kernels: random problems that correct variants of attention must pass.

``python -m studies false_alarms --page`` takes minutes; ``--seconds`` ends it sooner, the sentence says how far it
came, and with ``--more`` the next run continues from there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from attention_conformance.conformance.cases.base import Case
from attention_conformance.conformance.cases.envelopes import Proposed, random_shape
from attention_conformance.conformance.evidence.variants import CORRECT, Variant
from attention_conformance.conformance.evidence.verdicts import RANGE
from attention_conformance.conformance.evidence.verdicts import excuse as excuse_of
from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.conformance.ledger.load import Ledger
from attention_conformance.conformance.properties.drawn import once, problem_of, with_past
from attention_conformance.conformance.run_case import judge_case
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.envelope import Envelope
from attention_conformance.impls.process.pool import Pool
from attention_conformance.impls.select import plug_in, with_attributes
from studies.common import Study, markdown, sentence

PROBLEMS = 20_000

#: Largest cost of a problem, B · Hq · Sq · Sk · (D + Dv), unless every drawn shape costs more.
MOST = 1 << 18

#: Both sides of tiles and splits, widths of kernels.
SIZES = Proposed(
    b=(1, 2),
    hkv=(1, 2),
    group=(1, 1, 2, 3, 8),
    lengths=(1, 1, 2, 8, 16, 63, 64, 65, 127, 128, 129, 175, 176, 177, 255, 256, 257, 385, 511, 512, 513, 1024, 1025),
    widths=(32, 40, 64, 80, 96, 128, 192, 256),
)

DTYPES = ("float16", "bfloat16", "float32")

SEED = 118


def problem(index: int) -> tuple[Case, str]:
    """The problem of an index, always the same one, and its dtype."""
    rng = np.random.default_rng((SEED, index))
    dtype = DTYPES[index % len(DTYPES)]
    drawn = problem_of(rng, f"kernels-{index}", random_shape(rng, Envelope(), MOST, SIZES))
    return once(with_past(rng, drawn) if rng.random() < 0.25 else drawn, dtype), dtype


def judged_by(index: int, dtype: str, count: int) -> list[str]:
    """The variants that judge a problem: ``count`` of those that have its dtype, in turn."""
    having = [name for name, variant in CORRECT.items() if dtype in variant.dtypes]
    return [having[(index // len(DTYPES) * count + i) % len(having)] for i in range(min(count, len(having)))]


def plugged(name: str) -> Any:
    """A variant as a user plugs it in, with the profiles that it declares."""
    variant: Variant = CORRECT[name]
    found = plug_in(f"attention_conformance.conformance.evidence.variants:{name}")
    return with_attributes(found, {"dtypes": variant.dtypes, "profiles": dict(variant.profiles)})


def alarm(case: Case, dtype: str, name: str, implementation: Any, pool: Pool) -> str:
    """Reason why a variant fails a problem; "" where it passes, or where nothing is promised (SDPA-26)."""
    target, everything = Target(implementation, "cpu", dtype), frozenset(case.keywords)
    judged = judge_case(target, case, pool, everything, Ledger(), {}, None)
    if judged.result.outcome is Outcome.PASSED:
        return ""
    record = excuse_of(target, case, judged, Ledger(), {})
    return "" if record == RANGE else str(judged.result.reason)


def measure(problems: int, each: int, seconds: float, more: bool = False) -> dict[str, Any]:
    """Judge random problems by ``each`` variants; with ``more`` those after the kept ones, which count."""
    implementations = {name: plugged(name) for name in CORRECT}
    pool, end = Pool(in_process=True), time.perf_counter() + seconds
    before: dict[str, Any] = STUDY.kept() if more else {"problems": 0, "counts": {}, "alarms": []}
    counts = {name: dict.fromkeys(DTYPES, 0) | before["counts"].get(name, {}) for name in CORRECT}
    alarms, done = list(before["alarms"]), before["problems"]
    for index in range(done, problems):
        case, dtype = problem(index)
        for name in judged_by(index, dtype, each):
            counts[name][dtype] += 1
            why = alarm(case, dtype, name, implementations[name], pool)
            alarms += [[index, dtype, name, why]] if why else []
        done += 1
        if time.perf_counter() > end:
            break
    return {"problems": done, "counts": counts, "alarms": alarms, "threads": 1}


def table(found: Mapping[str, Any]) -> str:
    """One row for each variant."""
    rows = [
        (f"`{name}`", *(f"{by_dtype[dtype]:,}" for dtype in DTYPES), sum(a[2] == name for a in found["alarms"]))
        for name, by_dtype in found["counts"].items()
    ]
    total = sum(sum(by_dtype.values()) for by_dtype in found["counts"].values())
    words = (
        f"{found['problems']:,} random problems at the sizes of kernels, judged {total:,} times: "
        f"{len(found['alarms'])} false alarms"
    )
    heads = ("correct variant", *DTYPES, "false alarms")
    return f"{markdown(heads, rows)}\n\n{sentence(found, words)}"


STUDY = Study(
    "false_alarms",
    "Random problems at the sizes of kernels that correct variants of attention have to pass.",
    measure,
    {"conformance/evidence/page.md": table},
    {
        "--problems": {"type": int, "default": PROBLEMS, "metavar": "N", "help": "default: %(default)s"},
        "--each": {"type": int, "default": 1, "metavar": "N", "help": "variants a problem; default: %(default)s"},
        "--more": {"action": "store_true", "help": "go on behind the problems that are kept"},
        "--seconds": {"type": float, "default": 3600.0, "help": "after so many it ends; default: %(default)s"},
    },
)
