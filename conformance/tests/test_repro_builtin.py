"""Scripts of the built-in implementations: they agree with the judge, and every recorded deviation shows in one."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib import metadata

import pytest

from attention_conformance.conformance.cases import AnyCase, Case, every_case
from attention_conformance.conformance.cases.layer import LayerShape
from attention_conformance.conformance.cases.packed import PackedCase, PagedCase
from attention_conformance.conformance.judging.outcomes import Failure, Result
from attention_conformance.conformance.ledger.load import Deviation, read
from attention_conformance.conformance.ledger.versions import PROCESSOR, processor
from attention_conformance.conformance.tests.repro_runner import OWN
from attention_conformance.conformance.tests.repro_scripts import (
    NOTHING_WRONG,
    Job,
    Ran,
    Written,
    alone,
    shown,
    written_and_run,
)
from attention_conformance.impls.contract import DTYPES, Framework
from attention_conformance.impls.memory_layouts import LAYOUTS
from attention_conformance.impls.operators import (
    MERGE,
    MERGE_GRAD,
    MHA,
    MHA_GRAD,
    OPERATORS,
    PAGED,
    SDPA,
    SDPA_GRAD,
    SUBLAYER,
    VARLEN,
    VARLEN_GRAD,
    Operator,
)
from attention_conformance.impls.script import WIDTH
from attention_conformance.impls.select import builtin

pytestmark = pytest.mark.slow(120)

#: Lengths that are long enough for several tiles, and lengths too long to be tried here.
TILES, LONG = 16, 1000

#: Implementations that are compiled or traced for each case are tried on every third case, or every sixth of a layer,
#: as those are larger; implementations that take seconds are tried on one.
TRACED = ("torch-flex", "jax-*")
PACKED = ("varlen", "varlen_grad", "paged")
STEPS = {
    "sdpa": 3,
    "mha": 6,
    "sublayer": 6,
    "sdpa_grad": 4,
    "mha_grad": 4,
    "merge": 4,
    "merge_grad": 4,
    **dict.fromkeys(PACKED, 4),
}
SLOW = ("torch-compile*", "torch-flex-compile", "onnx-export*")
ONE = {
    "sdpa": "mask",
    "mha": "mha-mask-cross",
    "sublayer": "sublayer-causal",
    "sdpa_grad": "grad-mask",
    "mha_grad": "mha-grad-mask",
    "merge": "merge-two",
    "merge_grad": "merge-grad-lse",
    "varlen": "varlen-causal",
    "varlen_grad": "varlen-grad-causal",
    "paged": "paged-mixed",
}


def features(case: AnyCase) -> set[str]:
    """Features of a case, other than the dtype, that change its script; an invalid call may lack its own features."""
    if case.invalid:
        return {f"refused by {case.clauses[0]}"}
    found = {*case.keywords, f"{case.memory} {sorted(case.keywords) if case.memory != 'contiguous' else ''}"}
    found |= {f"{name} as an array" for name in ("causal_offset",) if callable(case.options.get(name))}
    found |= {"edit"} if case.edit else set()
    found |= {"a call before"} if case.after else set()
    heads = isinstance(case, (Case, PackedCase)) and case.shape.hq != case.shape.hkv
    found |= {"grouped heads"} if heads else set()
    found |= {f"stored as {case.stored}"} if isinstance(case, PagedCase) else set()
    found |= lengths(case) if isinstance(case, PackedCase) else set()
    found |= forms(case) if isinstance(case.shape, LayerShape) else set()
    found |= {str(case.dtypes)} if case.operator in (MERGE.name, MERGE_GRAD.name) else set()  # few have keywords
    found |= {"several tiles"} if case.shape.sk > TILES else set()
    found |= {"many options"} if len(case.keywords) > len(OPERATORS[case.operator].keywords) / 2 else set()
    return found | ({"nothing"} if case.zeros else set())


def lengths(case: PackedCase) -> set[str]:
    """Features of packs that change a script: empty sequences, unequal lengths of queries and keys; and dtypes."""
    queries, keys = case.shape.q_lengths, case.shape.k_lengths
    return {str(case.dtypes), f"no queries {0 in queries}", f"no keys {0 in keys}", f"equal lengths {queries == keys}"}


def forms(case: AnyCase) -> set[str]:
    """Features of layers that change a script: ranks, widths, padding masks; and dtypes, as cases are few."""
    keywords, s = case.inputs(case.dtypes[0]).keywords, case.shape
    found = {str(case.dtypes), *(["unbatched"] if s.unbatched else [])}
    found |= {"another width"} if s.e != s.ekv else set()
    for name in ("mask", "bias"):
        if name in keywords:
            axes = zip(keywords[name].shape, s.scores[-keywords[name].ndim :], strict=True)
            found.add(f"{name} {[length == full for length, full in axes]} {case.options.get('is_causal')}")
    return found


@functools.cache
def sample(operator: str = "sdpa") -> tuple[tuple[str, str], ...]:
    """Cases that have every feature and dtype of an operator, each chosen for the most features not covered before.

    Each case is taken in the dtype that is rarest so far.
    """
    cases = [case for case in every_case().values() if case.operator == operator]
    shown = {case.name: features(case) for case in cases if max(case.shape.sq, case.shape.sk) < LONG}
    having = {(name, dtype): {dtype, *shown[name]} for name in shown for dtype in every_case()[name].dtypes}
    chosen: list[tuple[str, str]] = []
    while any(having.values()):
        used = [dtype for _, dtype in chosen]
        job = max(having, key=lambda each: (len(having[each]), -used.count(each[1])))
        chosen.append(job)
        having = {each: rest - having[job] for each, rest in having.items()}
    return tuple(chosen)


def jobs() -> list[Job]:
    """Jobs to try: the installed implementations on cases that they may support."""
    found: list[Job] = []
    for each in builtin().values():
        if each.missing() or "cpu" not in each.devices or each.operator not in ONE:
            continue
        slow, traced = (any(fnmatch(each.name, pattern) for pattern in patterns) for patterns in (SLOW, TRACED))
        cases = sample(each.operator)
        chosen = ((ONE[each.operator], "float32"),) if slow else cases[:: STEPS[each.operator]] if traced else cases
        for case, dtype in chosen:
            possible = [one for one in each.dtypes if one in every_case()[case].dtypes]
            found += [(each, case, one) for one in sorted(possible, key=lambda one: one != dtype)[:1]]
    return found


# Recorded deviations.


def in_force(record: Deviation) -> bool:
    """Whether the record applies to the installed version, and to the CPU."""
    try:
        versions = {record.package: metadata.version(record.package), PROCESSOR: processor()}
    except metadata.PackageNotFoundError:
        return False
    return record.in_force(versions) and record.devices in ((), ("cpu",))


def example(record: Deviation) -> Job | None:
    """An implementation, case and dtype of a record; no export if there is another, as exports take seconds."""
    found = [
        (each, case.name, dtype)
        for each in builtin().values()
        if not each.missing() and each.operator in ONE
        for case in every_case().values()
        for dtype in case.dtypes
        if case.operator == each.operator and dtype in each.dtypes and record.covers(each.name, "cpu", dtype, case.name)
    ]
    return min(found, key=lambda job: "export" in job[0].name, default=None)


EXAMPLES = {record.id: example(record) for record in read().deviations if in_force(record)}
RECORDS = {record.id: record for record in read().deviations if EXAMPLES.get(record.id) is not None}

#: Records that show at times, and records of uninitialised memory, which is different in a script's process.
AT_TIMES = {name for name, record in RECORDS.items() if record.seen}
UNWRITTEN = {"flex-compiled-eight-keys"} & RECORDS.keys()

#: Processes in which such a script may fail: of six tried, two had the right numbers.
PROCESSES = 10


def concerns(records: Iterable[str], result: Result) -> bool:
    """Whether one of some records covers a result."""
    return any(RECORDS[name].covers(result.implementation, "cpu", result.dtype, result.case) for name in records)


# Outcomes of the scripts.


@dataclass(frozen=True)
class Run:
    """The scripts, and the outcomes of those that are not of a crash."""

    scripts: dict[Job, Written]
    ran: dict[Job, Ran]

    def of(self, name: str) -> list[tuple[Written, Ran]]:
        """The scripts of an implementation that were run, with their outcomes."""
        return [(self.scripts[job], ran) for job, ran in self.ran.items() if job[0].name == name]

    def example(self, record: str) -> tuple[Written, Ran]:
        """The script of a record, with its outcome."""
        job = EXAMPLES[record]
        assert job is not None
        return self.scripts[job], self.ran[job] if job in self.ran else Ran(alone(self.scripts[job].path), "")


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """All jobs, with each library in one process, so that it is imported and warmed up once."""
    wanted = dict.fromkeys((*jobs(), *filter(None, EXAMPLES.values())))
    return Run(*written_and_run(wanted, tmp_path_factory.mktemp("scripts")))


each_implementation = pytest.mark.parametrize("name", sorted({job[0].name for job in jobs()}))


def records(*failures: Failure) -> pytest.MarkDecorator:
    """A test for each record of these failures that shows in every call."""
    names = [name for name, each in RECORDS.items() if each.failure in failures and name not in AT_TIMES]
    return pytest.mark.parametrize("record", names)


def keywords(cases: Iterable[AnyCase]) -> set[str]:
    """The keywords that any of the cases gives."""
    return {keyword for case in cases for keyword in case.inputs(case.dtypes[0]).keywords}


@pytest.mark.parametrize(
    "operator",
    [SDPA, MHA, SUBLAYER, SDPA_GRAD, MHA_GRAD, MERGE, MERGE_GRAD, VARLEN, VARLEN_GRAD, PAGED],
    ids=lambda operator: operator.name,
)
def test_the_sample_has_everything(operator: Operator) -> None:
    """The sample has every dtype, keyword and layout of the operator's cases; for sdpa these are all that exist."""
    chosen = [every_case()[name] for name, _ in sample(operator.name)]
    cases = [case for case in every_case().values() if case.operator == operator.name]
    assert keywords(chosen) == keywords(cases)
    assert {case.memory for case in chosen} == {case.memory for case in cases}
    assert {dtype for _, dtype in sample(operator.name)} == set(DTYPES)
    if operator is SDPA:
        assert keywords(chosen) == set(SDPA.keywords)
        assert {case.memory for case in chosen} == set(LAYOUTS)


def test_there_are_records() -> None:
    """There are records of functions and of layers, and records by value."""
    assert {case for job in EXAMPLES.values() if job for case in [every_case()[job[1]].operator]} >= {"sdpa", "mha"}
    assert Failure.VALUE in {record.failure for record in RECORDS.values()}


@each_implementation
def test_scripts_say_what_the_suite_says(everything: Run, name: str) -> None:
    """The exit code is 0 where the implementation is right, and 1 where it is wrong."""
    assert everything.of(name)
    for script, ran in everything.of(name):
        right = script.result.reason == NOTHING_WRONG
        same = ran.code == (0 if right else 1)
        assert same or concerns(AT_TIMES | UNWRITTEN, script.result), f"{script.path}: {ran.printed}"


@each_implementation
def test_scripts_find_the_values_that_were_judged(everything: Run, name: str) -> None:
    """Values, right or wrong, are the same to all printed digits, which are those of float32."""
    for script, ran in everything.of(name):
        same = ran.values == [shown(element) for element in script.elements]
        assert same or concerns(AT_TIMES | UNWRITTEN, script.result), script.path


@each_implementation
def test_scripts_stand_alone(everything: Run, name: str) -> None:
    """Scripts do not import this suite, and ml_dtypes only for NumPy arrays of a dtype that NumPy lacks."""
    for script, _ in everything.of(name):
        used = imported(script.path.read_text(encoding="utf-8"))
        assert OWN not in used
        arrays = every_case()[script.result.case].inputs(script.result.dtype).arrays.values()
        lacking = {str(array.dtype) for array in arrays} & {"bfloat16", "float8_e4m3fn", "float8_e5m2"}
        assert "ml_dtypes" not in used or (builtin()[name].framework is Framework.NUMPY and lacking)


def imported(source: str) -> set[str]:
    """The packages that a script imports."""
    nodes = list(ast.walk(ast.parse(source)))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in names}


@each_implementation
def test_scripts_are_readable(everything: Run, name: str) -> None:
    """No line is wider than a screen, and the first one names the implementation."""
    for script, _ in everything.of(name):
        lines = script.path.read_text(encoding="utf-8").splitlines()
        assert max(map(len, lines)) <= WIDTH, script.path
        assert lines[0].startswith(f"# {name} (")


@records(*Failure)
def test_the_script_of_a_deviation_fails(everything: Run, record: str) -> None:
    """The exit code is 1 or that of a process that dies; where memory decides, it is so in one process of several."""
    script, ran = everything.example(record)
    assert script.result.failure is RECORDS[record].failure
    code, more = ran.code, PROCESSES if record in UNWRITTEN else 0
    while code == 0 and more:
        code, more = subprocess.run([sys.executable, "-I", script.path], check=False).returncode, more - 1
    assert code == 1 or (code < 0 and script.result.failure is Failure.CRASHED), ran.printed


@records(Failure.ERROR)
def test_the_script_of_a_deviation_raises_what_was_raised(everything: Run, record: str) -> None:
    """The traceback ends with the exception's name, maybe with its module; ONNX Runtime has two names for one."""
    script, ran = everything.example(record)
    assert script.reply is not None
    raised = re.compile(rf"^([\w.]+\.)?{re.escape(script.reply.text.partition(':')[0])}: ", re.MULTILINE)
    assert raised.search(ran.printed) or "[ONNXRuntimeError]" in ran.printed
