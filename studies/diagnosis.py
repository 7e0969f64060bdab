"""Diagnosis on libraries that are not built in: what it says about causes that were written down from their sources.

Each cause was written down before the first run: what the source does, where that is, and which words of a diagnosis
would name it.  A run judges the function on the small cases of its operator and diagnoses its failures.  An explanation
that names none of the function's causes is wrong.
"""

from __future__ import annotations

import inspect
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attention_conformance.conformance.cases import AnyCase, every_case
from attention_conformance.conformance.diagnosis.explanation import Explanation, Passed
from attention_conformance.conformance.diagnosis.match import diagnose
from attention_conformance.conformance.faults.trials import Failed
from attention_conformance.conformance.judging.judge import judge
from attention_conformance.conformance.judging.outcomes import Outcome, Result
from attention_conformance.conformance.run_case import request
from attention_conformance.impls.calls import call
from attention_conformance.impls.contract import Implementation
from studies import held_out, held_out_second, library_functions
from studies.causes import CAUSES
from studies.common import Study, Unfit, markdown, sentence

#: Cases are at most this large, in elements of their arguments, and are run in these dtypes.
LARGEST = 1600
DTYPES = ("float32", "float16", "float64")

#: Where the functions are.
MODULES = (library_functions, held_out, held_out_second)

#: Beginning of an exception's text where a package is not installed.
_ABSENT = ("ModuleNotFoundError", "PackageNotFoundError", "ImportError")


@dataclass(frozen=True)
class Found:
    """Diagnosis of a function, with the numbers of its cases."""

    failed: int
    passed: int
    explanations: tuple[Explanation, ...]
    unexplained: tuple[str, ...]
    seconds: float


def functions() -> list[str]:
    """The functions that causes were written down for."""
    return list(dict.fromkeys(cause.function for cause in CAUSES))


def examined(function: Callable[..., Any]) -> Found:
    """Judge a function on the small cases of its operator, and diagnose its failures."""
    given = set(inspect.signature(function).parameters)
    operator = "mha" if "w_q" in given else "sdpa"
    plugged = Implementation(function.__name__, "none:none", operator=operator)
    failed: list[Failed] = []
    passed: list[Passed] = []
    for case in sorted(every_case().values(), key=lambda case: case.size):
        if case.operator != operator or case.size[0] > LARGEST or case.invalid or case.keywords - given:
            continue
        for dtype in (d for d in case.dtypes if d in DTYPES):
            _judge_into(plugged, function, case, dtype, failed, passed)
    start = time.process_time()
    explanations = tuple(diagnose(failed, passed, pairs=False))
    explained = frozenset[Failed]().union(*(e.fits for e in explanations))
    left = tuple(f"{f.case.name} {f.dtype}" for f in sorted(failed, key=lambda f: f.size)[:80] if f not in explained)
    return Found(len(failed), len(passed), explanations, left, time.process_time() - start)


def _judge_into(
    plugged: Implementation,
    function: Callable[..., Any],
    case: AnyCase,
    dtype: str,
    failed: list[Failed],
    passed: list[Passed],
) -> None:
    profile = plugged.profile(dtype)
    reply = call(plugged, request(case, dtype, "cpu"), function)
    if reply.text.startswith(_ABSENT):  # it would be explained as the function's own exception
        raise Unfit(f"{plugged.name}: {reply.text}")
    blank = Result(plugged.name, "cpu", dtype, case.name, case.clauses, Outcome.PASSED, profile=profile)
    result = judge(reply, case, blank)
    if result.outcome is Outcome.FAILED and result.failure is not None:
        failed.append(Failed(case, dtype, profile, result.failure, reply))
    elif result.outcome is Outcome.PASSED:
        passed.append(Passed(case, dtype, profile))


def graded(name: str, found: Found) -> dict[str, Any]:
    """The causes of a function with what names each, and the explanations that name none of them."""
    causes = [cause for cause in CAUSES if cause.function == name]
    titles = [e.title for e in found.explanations]
    named = {cause.what: [t for t in titles if re.search(cause.says, t)] for cause in causes}
    right = {title for some in named.values() for title in some}
    return {
        "function": name,
        "failed": found.failed,
        "passed": found.passed,
        "seconds": round(found.seconds, 1),
        "causes": [{"what": c.what, "where": c.where, "named": named[c.what][:1], "after": c.after, "held_out": c.held_out} for c in causes],
        "right": sorted(right),
        "wrong": [f"{e.title} ({len(e.fits)})" for e in found.explanations if e.title not in right],
        "left": list(found.unexplained),
    }


def measure(function: Sequence[str]) -> dict[str, Any]:
    """Every function, or some, graded.

    The row of a held-out function's first run stays; a function whose package is not installed keeps the row of its
    last run.
    """
    os.environ.setdefault("KERAS_BACKEND", "torch")
    kept = STUDY.kept()
    last = {row["function"]: row for row in kept["functions"]}
    rows, absent = [], []
    for name in function or functions():
        try:
            rows.append(graded(name, examined(_function(name))))
        except Unfit:
            if name not in last:
                raise
            rows.append(last[name])
            absent.append(name)
    first = {row["function"]: row for row in [*(row for row in rows if held_out_set(row)), *kept["first"]]}
    versions = kept["machine"]["versions"] | _versions()
    return {"functions": rows, "first": list(first.values()), "absent": absent, "versions": versions, "threads": 1}


def _function(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = next(vars(module)[name] for module in MODULES if name in vars(module))
    return found


def held_out_set(row: Mapping[str, Any]) -> int:
    """The number of a function's held-out set; 0 for one that was looked at before its figure was taken."""
    return max(int(cause.get("held_out", 0)) for cause in row["causes"])


def counted(rows: Sequence[Mapping[str, Any]], held_out: int) -> tuple[int, int, int, int]:
    """Numbers for one set of functions: causes, causes that are named, explanations that name none, all explanations."""
    functions = [each for each in rows if held_out_set(each) == held_out]
    causes = [cause for each in functions for cause in each["causes"] if not cause["after"]]
    named = sum(bool(cause["named"]) for cause in causes)
    wrong = sum(len(each["wrong"]) for each in functions)
    said = wrong + sum(len(set(each["right"])) for each in functions)
    return len(causes), named, wrong, said


#: The held-out sets, by number.
_SETS = {1: "held out, first set", 2: "held out, second set"}


def table(found: Mapping[str, Any]) -> str:
    """A row for each cause of a function that was looked at before and each wrong explanation, then all figures."""
    rows = []
    for each in found["functions"]:
        if held_out_set(each):
            continue
        for cause in each["causes"]:
            said = cause["named"][0] if cause["named"] else "–"
            rows.append((f"`{each['function']}`", cause["what"], _link(cause["where"]), said, _grade(cause)))
        rows += [(f"`{each['function']}`", "–", "", text, "wrong") for text in each["wrong"]]
    figures = [_figures("looked at before", counted(found["functions"], 0))]
    for number, words in _SETS.items():
        first, now = (counted(found[run], number) for run in ("first", "functions"))
        figures.append(_figures(f"{words}, at its first run", first))
        figures += [_figures(f"{words}, now", now)] if now != first else []
    of = markdown(("functions", "causes named", "explanations that name no cause"), figures, left=(0,))
    versions = ", ".join(f"{name} {version}" for name, version in found["machine"]["versions"].items())
    heads = ("function", "cause, as its source shows it", "where", "what the diagnosis says", "")
    absent = ", ".join(f"`{name}`" for name in found["absent"])
    kept = [f"Rows of an earlier run, as their package is not there: {absent}."] * bool(absent)
    return "\n\n".join([_cells(heads, rows), of, f"{versions}.", *kept, sentence(found)])


def held_out_table(found: Mapping[str, Any]) -> str:
    """A row for each cause of a held-out function and one for its wrong explanations, at its first run and now."""
    rows = []
    first = {row["function"]: row for row in found["first"]}
    for now in found["functions"]:
        if not held_out_set(now):
            continue
        before, name = first[now["function"]], f"`{now['function']}`"
        again = now["function"] not in found["absent"]
        named = {cause["what"]: cause["named"] for cause in before["causes"]}
        for cause in now["causes"]:
            said = [some[0] if some else "–" for some in (named.get(cause["what"], []), cause["named"])]
            what = cause["what"] + " (seen after)" * cause["after"]
            rows.append((name, what, _link(cause["where"]), said[0], said[1] if again else "not run again"))
        if before["wrong"] or now["wrong"]:
            wrong = ["; ".join(run["wrong"]) or "–" for run in (before, now)]
            rows.append((name, "none: wrong", "", wrong[0], wrong[1] if again else "not run again"))
    heads = ("function", "cause, as its source shows it", "where", "what the diagnosis said at first", "what it says now")
    return _cells(heads, rows)


def _cells(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return markdown(heads, [[str(c).replace("|", "\\|") for c in row] for row in rows], left=range(len(heads)))


def _figures(words: str, of: tuple[int, int, int, int]) -> tuple[str, str, str]:
    causes, named, wrong, said = of
    share, false = f"{named / max(1, causes):.0%}", f"{wrong / max(1, said):.0%}"
    return words, f"{named} of {causes} ({share})", f"{wrong} of {said} ({false})"


def _grade(cause: Mapping[str, Any]) -> str:
    return ("right" if cause["named"] else "none") + (", seen after" if cause["after"] else "")


def _link(where: str) -> str:
    return f"[{where.rstrip('/').rsplit('/', 1)[-1]}]({where})" if where.startswith("http") else f"`{where}`" if where else ""


def _whole(function: Sequence[str]) -> None:
    """The page has all functions."""
    if function:
        raise Unfit("--page needs all functions")


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    names = (
        "flax", "equinox", "dm-haiku", "keras", "memory-efficient-attention-pytorch", "x-transformers",
        "ring-attention-pytorch", "transformers", "kornia", "mlx", "openvino", "allennlp", "dalle-pytorch",
        "flash-cosine-sim-attention", "mega-pytorch", "nemo-toolkit", "neuralforecast", "palm-rlhf-pytorch",
        "pypots", "pytorch-forecasting", "sockeye", "tsai", "alphafold2-pytorch", "chronos-forecasting", "coqui-tts",
        "d3rlpy", "deepchem", "dgl", "fairseq2", "fla-core", "flash-attention-softmax-n", "ibm-fms", "joeynmt",
        "kauldron", "linear-attention-transformer", "litert-torch", "litgpt", "llm-foundry", "megatron-core",
        "mmpretrain", "OpenNMT-py", "parlai", "perceiver-pytorch", "speechbrain", "stanza", "tabicl",
        "torchscale", "torchtext", "transformer-lens", "trax", "uni2ts",
    )  # fmt: skip
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


STUDY = Study(
    "diagnosis",
    "What the diagnosis says of mistakes of libraries that are not built in, against what their sources show.",
    measure,
    {"conformance/DIAGNOSIS.md": table, "conformance/DIAGNOSIS.md#held out": held_out_table},
    {"function": {"nargs": "*", "metavar": "FUNCTION", "help": "default: all; one whose package is not there keeps its last row"}},
    _whole,
)
