"""Upstream issues: every record has one; its script is short and shows the failure, and its title is true."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import inspect
import platform
from collections import Counter
from dataclasses import replace

import pytest

from attention_conformance.cli import main
from attention_conformance.conformance.ledger import issues as module
from attention_conformance.conformance.ledger.issues import (
    Issue,
    Seen,
    find,
    issues,
    located,
    modules,
    run,
    text,
    versions,
    write,
)
from attention_conformance.conformance.ledger.load import LedgerError, read
from attention_conformance.conformance.ledger.versions import PROCESSOR, processor
from attention_conformance.conformance.tests.issue_claims import evaluated

LEDGER = read()
BY_NAME = {each.name: each for each in issues()}

#: Issues that export or compile, which takes seconds each.
SLOW = {
    name for name, issue in BY_NAME.items() if "torch.onnx.export(" in issue.script or "torch.compile(" in issue.script
}

#: Issues whose scripts run as a user runs them: one of each kind of failure and of each library.
SAMPLE = (
    "ort-mha-fill",
    "ort-mha-no-values",
    "onnx-reference-one-key",
    "jax-nn-empty-row",
    "torch-flash-rank-1",
    "torch-ranks",
)

RIGHT = Issue("A right one", "https://example.org", "print('right')\n", name="right")


def of_this_processor(issue: Issue) -> bool:
    """Whether a record of the issue applies to the processor that the test runs on."""
    records = [each for each in LEDGER.deviations if each.id in issue.records]
    return any(each.of_processor({PROCESSOR: processor()}) for each in records)


def installed(names: set[str]) -> list[Issue]:
    """Issues whose libraries are installed and that show on this processor."""
    packages = {each.id: each.package for each in LEDGER.deviations}
    names = {name for name in names if of_this_processor(BY_NAME[name])}
    here = {package: bool(list(importlib.metadata.distributions(name=package))) for package in packages.values()}
    names = {name for name in names if all(here[packages[record]] for record in BY_NAME[name].records)}
    needed = {name: [m for m in modules(BY_NAME[name].script) if "." not in m] for name in sorted(names)}
    return [BY_NAME[name] for name, some in needed.items() if all(importlib.util.find_spec(m) for m in some)]


def test_every_record_has_one_issue() -> None:
    """Every issue is about existing records; records of GPUs only have none, as their scripts could not be run."""
    named = Counter(record for issue in issues() for record in issue.records)
    assert named == Counter(record.id for record in LEDGER.deviations if record.devices != ("cuda",))


def test_records_of_one_issue_are_of_one_clause_or_package() -> None:
    """The records of an issue share one cause: one clause or one package."""
    by_id = {record.id: record for record in LEDGER.deviations}
    for issue in issues():
        some = [by_id[each] for each in issue.records]
        assert len({each.package for each in some}) <= 1, issue.name


def test_scripts_are_short() -> None:
    """Every script has under 40 lines, and nine of ten texts do."""
    scripts = {issue.name: len(issue.script.splitlines()) for issue in issues()}
    texts = [len(text(BY_NAME[name], Seen(1, "a line\n" * 3)).splitlines()) for name in scripts]
    assert max(scripts.values()) < 40
    assert sum(length < 40 for length in texts) >= 0.9 * len(texts)


@pytest.mark.parametrize("issue", issues(), ids=lambda issue: issue.name)
def test_a_script_has_nothing_that_it_does_not_need(issue: Issue) -> None:
    """A script has no import of this suite, no random numbers, no function, and no class except an exported module."""
    tree = ast.parse(issue.script)
    assert "attention_conformance" not in issue.script
    assert "random" not in issue.script.replace("torch.manual_seed(0)", "")
    assert max(map(len, issue.script.splitlines())) <= 120
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    assert len(classes) == ("torch.onnx.export(" in issue.script)
    assert not [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    imported = {
        a.asname or a.name for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom)) for a in n.names
    }
    assert imported <= used


@pytest.mark.parametrize("issue", issues(), ids=lambda issue: issue.name)
def test_an_issue_claims_something(issue: Issue) -> None:
    """An issue has either a tested claim or a signal, and quotes the documentation that it links to."""
    assert bool(issue.claim) != bool(issue.signal)
    assert issue.link.startswith("https://")
    assert issue.promise
    assert not issue.follows or issue.follows.endswith(".")


@pytest.mark.slow(16)
def test_claims_are_true() -> None:
    """The claims of the titles hold after the scripts; a crash is the stated signal."""
    some = installed(BY_NAME.keys() - SLOW)
    found = evaluated([(issue.script, issue.claim or "True") for issue in some])
    wrong = {i.name: said for i, said in zip(some, found, strict=True) if said != (i.signal or "true")}
    assert not wrong


@pytest.mark.slow
def test_claims_of_exports_and_compiled_functions_are_true() -> None:
    """The claims of issues that export or compile hold too."""
    some = installed(SLOW)
    found = evaluated([(issue.script, issue.claim or "True") for issue in some])
    wrong = {i.name: said for i, said in zip(some, found, strict=True) if said != (i.signal or "true")}
    assert not wrong


@pytest.mark.slow(3)
def test_a_claim_that_measurement_contradicts_is_found() -> None:
    """A false claim is found, such as an earlier one that a masked score was filled."""
    pytest.importorskip("onnxruntime")
    fill = BY_NAME["ort-mha-fill"]
    assert evaluated([(fill.script, "got[0] == v.mean()")]) == ["false"]
    assert evaluated([("print(1)", "True")]) == ["the script found nothing"]
    (said,) = evaluated([("raise ValueError('x')", "nothing == 0")])
    assert said.startswith("NameError")


@pytest.mark.slow(11)
@pytest.mark.parametrize("name", SAMPLE)
def test_a_script_as_written_shows_its_failure(name: str) -> None:
    """The script, run alone, ends with an error and shows the output."""
    if not installed({name}):
        pytest.skip("its library is not installed")
    seen = run(BY_NAME[name].script)
    assert seen.status != 0
    assert seen.came
    assert BY_NAME[name].signal in seen.came


def _documentation() -> dict[str, str]:
    """The documentation of the installed packages, by the beginning of its link."""
    found: dict[str, str] = {}
    if importlib.util.find_spec("torch"):
        import torch
        from torch.nn.attention.flex_attention import flex_attention

        pages = "https://docs.pytorch.org/docs/stable/"
        found |= {
            f"{pages}generated/torch.nn.functional.scaled": torch.nn.functional.scaled_dot_product_attention.__doc__
            or "",
            f"{pages}generated/torch.nn.MultiheadAttention": torch.nn.MultiheadAttention.forward.__doc__ or "",
            f"{pages}nn.attention.flex_attention": flex_attention.__doc__ or "",
            **{f"{pages}generated/torch.{n}.html": getattr(torch, n).__doc__ or "" for n in ("mul", "logsumexp")},
            f"{pages}generated/torch.repeat_interleave.html": torch.repeat_interleave.__doc__ or "",
            "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/": _merger(),
        }
    if importlib.util.find_spec("jax"):
        import jax

        found["https://docs.jax.dev/"] = jax.nn.dot_product_attention.__doc__ or ""
    if importlib.util.find_spec("onnx"):
        import onnx

        for name in ("Attention", "ReduceLogSumExp", "Mul"):
            schemas = [onnx.defs.get_schema(name, version) for version in ((23, 24) if name == "Attention" else (18,))]
            found[f"https://onnx.ai/onnx/operators/onnx__{name}.html"] = "\n".join(map(_schema, schemas))
    if importlib.util.find_spec("onnxruntime"):
        from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

        page = "https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft."
        found |= {f"{page}{s.name}": _schema(s) for s in get_all_operator_schema() if s.domain == "com.microsoft"}
    return found


def _merger() -> str:
    """The source of the class that merges the parts of context_parallel."""
    from torch.distributed.tensor.experimental._context_parallel._attention import _SDPAMerger

    return inspect.getsource(_SDPAMerger)


def _schema(schema) -> str:  # type: ignore[no-untyped-def]  # of onnx or of ONNX Runtime, which have no common class
    parts = [schema.doc, *(i.description for i in schema.inputs), *(a.description for a in schema.attributes.values())]
    parts += [getattr(c, "description", "") for c in getattr(schema, "type_constraints", ())]
    return "\n".join(filter(None, parts))


@pytest.mark.slow(2)
def test_promises_are_quoted_as_they_stand() -> None:
    """Every quotation is in the documentation of the installed package."""
    documentation = _documentation()
    missing = []
    for issue in issues():
        pages = [words for link, words in documentation.items() if issue.link.startswith(link)]
        if pages and issue.promise and not any(_flat(issue.promise) in _flat(words) for words in pages):
            missing.append((issue.name, issue.promise))
    assert not missing


def _flat(words: str) -> str:
    return " ".join(words.split())


def test_the_text_holds_what_a_maintainer_needs() -> None:
    """The text has title, script, output, the promise with its link, and every version."""
    issue = BY_NAME["export18-sdpa-empty-row"]
    written = text(issue, Seen(1, "got 2.0 expected 0.0"))
    assert written.startswith(f"# {issue.title}\n\n```python\nimport onnxruntime\n")
    assert issue.script.rstrip() in written
    assert "What comes:\n\n```\ngot 2.0 expected 0.0\n```" in written
    assert f"[documentation]({issue.link})" in written
    assert issue.promise in written
    assert f"Python {platform.python_version()}" in written
    for package, version in versions(issue.script).items():
        assert f"{package} {version}" in written


def test_what_follows_from_a_promise_is_said_after_it() -> None:
    """The consequence of a promise follows its quotation, and a link to source is called source."""
    written = text(BY_NAME["torch-context-parallel-junk"], Seen(1, "got 0.0 expected 0.7"))
    assert "The [source](https://github.com/pytorch/" in written
    assert '"# gives a relatively stable result." A part whose log-sum-exp is -inf has the weight 0' in written


def test_versions_are_those_of_every_library_involved() -> None:
    """The versions of an export include torch, onnx and onnxscript, which make it, and ONNX Runtime, which runs it."""
    pytest.importorskip("onnxscript")
    assert {"torch", "onnx", "onnxscript", "onnxruntime"} <= versions(BY_NAME["export18-sdpa-empty-row"].script).keys()


def test_a_script_that_is_right_writes_no_issue() -> None:
    """A script without a failure gives only a sentence and exit status 1."""
    said = write(RIGHT)
    assert isinstance(said, tuple)
    assert said[1] == 1
    assert "nothing to report" in said[0]


def test_a_script_that_runs_on_is_stopped() -> None:
    """A script that exceeds its time limit is stopped and reported as such."""
    seen = run("while True: pass", timeout=0.5)
    assert seen == Seen(1, "ran for more than 0.5 s")


def test_a_script_whose_library_is_not_installed_is_said() -> None:
    """A missing library is reported in one sentence."""
    with pytest.raises(LedgerError, match="needs nosuchlibrary, not installed"):
        write(replace(RIGHT, script="import nosuchlibrary\n"))


def test_a_script_that_takes_files_of_a_package_needs_it() -> None:
    """A package whose files a script reads, without importing it, must be installed, and its version is reported."""
    with pytest.raises(LedgerError, match="needs nosuchlibrary, not installed"):
        write(replace(RIGHT, script='from importlib.metadata import distribution\ndistribution("nosuchlibrary")\n'))
    script = 'from importlib.metadata import distribution\ndistribution("pytest")\n'
    assert versions(script) == {"pytest": pytest.__version__}
    assert located(BY_NAME["sage-last-tile"].script) == ("sageattention",)


def test_a_record_or_an_issue_is_found_by_its_name() -> None:
    """A record's or an issue's name finds the issue; an unknown name is refused with the nearest."""
    assert find("jax-nn-empty-row-2", LEDGER) is BY_NAME["jax-nn-empty-row"]
    assert find("jax-nn-empty-row", LEDGER) is BY_NAME["jax-nn-empty-row"]
    with pytest.raises(LedgerError, match="no record jax-nn-emty-row"):
        find("jax-nn-emty-row", LEDGER)


def test_a_record_without_an_issue_is_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record without an issue, as in a user's own ledger, is found itself."""
    monkeypatch.setattr(module, "issues", tuple)
    assert find("ort-mha-causal", LEDGER).id == "ort-mha-causal"  # type: ignore[union-attr]


def test_the_command_writes_the_issue(capsys: pytest.CaptureFixture[str]) -> None:
    """The issue is written to standard output, with exit status 0."""
    pytest.importorskip("onnxruntime")
    assert main(["ledger", "issue", "ort-mha-causal"]) == 0
    assert capsys.readouterr().out.startswith("# MultiHeadAttention, unidirectional: ")
    assert main(["ledger", "issue", "ort-mha-kausal"]) == 2
