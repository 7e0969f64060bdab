"""The end of a run as a user sees it: adapters, features, requirements, and the exit code."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from attention_conformance.conformance.cases import AnyCase, asked_cases
from attention_conformance.conformance.diagnosis.explain import REPEATED
from attention_conformance.conformance.judging.outcomes import Outcome, Result
from attention_conformance.conformance.results import read
from attention_conformance.conformance.run.run_checks import TOGETHER, Refused, conclude, refused
from attention_conformance.conformance.tests.test_features import results
from attention_conformance.conformance.tests.test_plugin import RIGHT, plug_in, run
from attention_conformance.conformance.tests.test_results import SCHEMA
from attention_conformance.impls.operators import SDPA

KERNELS = (
    RIGHT
    + """
def inside(q, k, v):
    return attention(*(a.swapaxes(1, 2) for a in (q, k, v))).swapaxes(1, 2)

def refuses_windows(q, k, v, *, window=None):
    if window is not None:
        raise NotImplementedError("later")
    return attention(q, k, v)

def takes_anything(q, k, v, **keywords):
    if keywords:
        raise NotImplementedError(f"no {sorted(keywords)[0]}")
    return attention(q, k, v)
"""
)
FLOAT32 = ("--dtype", "float32")


def lines_after(text: str, title: str) -> list[str]:
    """The lines of a section of the terminal summary, to the end."""
    lines = text.splitlines()
    return lines[next(i for i, line in enumerate(lines) if f" {title} " in line and line.startswith("=")) :]


@pytest.mark.slow
def test_a_wrong_layout_is_said_once_at_the_end_and_in_what_it_explains(tmp_path: Path) -> None:
    """The finding is in the diagnosis, with clause and script, in the result file's header and in messages."""
    options = ("--impl", "mykernels.py:inside", *FLOAT32, "--case", "plain-square", "--conformance-json", "o.jsonl")
    done = run(plug_in(tmp_path, KERNELS), *options)
    assert done.returncode == 1
    text = "it computes in (B, S, H, D): set attention.layout = 'BSHD'"
    assert "= adapter =" not in done.stdout
    assert f"mykernels.py:inside on cpu: {text}" in lines_after(done.stdout, "diagnosis")
    assert sum(text in line for line in lines_after(done.stdout, "conformance")) == 1
    assert f"Adapter:  {text}" in done.stdout
    lines = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text(encoding="utf-8").splitlines()]
    assert lines[0]["adapters"] == [{"implementation": "mykernels.py:inside", "device": "cpu", "text": text}]
    for line in lines:
        jsonschema.validate(line, SCHEMA)


@pytest.mark.slow
def test_a_right_adapter_is_not_mentioned(tmp_path: Path) -> None:
    """A right function has no finding in the output or in the header of the result file."""
    options = ("--impl", "mykernels.py:attention", "--case", "plain", "--conformance-json", "o.jsonl")
    done = run(plug_in(tmp_path, KERNELS), *options)
    assert done.returncode == 0, done.stdout
    assert " adapter " not in done.stdout
    assert not read(tmp_path / "o.jsonl").header.adapters


@pytest.mark.slow
def test_a_dtype_that_works_undeclared_is_a_hint(tmp_path: Path) -> None:
    """Undeclared dtypes in which a function is right are named in a hint; the run passes."""
    done = run(plug_in(tmp_path, KERNELS), "--impl", "mykernels.py:attention", "--case", "plain")
    assert done.returncode == 0, done.stdout
    assert "hint: mykernels.py:attention on cpu: a tiny input is computed correctly in float64, float16" in done.stdout


@pytest.mark.slow
def test_a_keyword_that_works_under_another_name_is_a_hint(tmp_path: Path) -> None:
    """Parameters that act like a keyword are named in a hint; one that only sounds like it is not."""
    text = RIGHT.replace(
        "mask=None, is_causal=False, scale=None", "attn_mask=None, causal=False, sm_scale=None, scaling=0"
    )
    text = text.replace("if mask is None else mask", "if attn_mask is None else attn_mask")
    text = text.replace("if is_causal:", "if causal:").replace(
        "scale is None else scale", "sm_scale is None else sm_scale"
    )
    assert "sm_scale=None, scaling=0" in text
    done = run(plug_in(tmp_path, text), "--impl", "mykernels.py:attention", "--case", "plain")
    assert done.returncode == 0, done.stdout
    hints = " ".join(done.stdout.split())
    for name, keyword in (("attn_mask", "mask"), ("causal", "is_causal"), ("sm_scale", "scale")):
        assert f"its parameter {name} works as {keyword}: rename it to {keyword} to have it judged" in hints
    assert "its parameter scaling" not in hints


@pytest.mark.parametrize("option", [FLOAT32, ("--in-process",)])
@pytest.mark.slow
def test_no_dtype_is_tried_that_was_not_asked_for(tmp_path: Path, option: tuple[str, ...]) -> None:
    """With --dtype other dtypes are not tried, and with --in-process only the calls of cases are made."""
    calls = (
        "import os\ndef attention(q, k, v):\n    print(q.dtype, os.getpid(), file=open('calls', 'a'))\n"
        "    return q**2 + 7\n"
    )
    plug_in(tmp_path, calls + "attention.dtypes = ('float32', 'float64')\n")
    run(tmp_path, "--impl", "mykernels.py:attention", "--case", "one-of-everything", *option)
    called = [line.split() for line in (tmp_path / "calls").read_text().splitlines()]
    assert {dtype for dtype, _ in called} <= {"float32", "float64"}
    by_process = Counter(process for _, process in called)
    # One process probes the envelope, in each dtype; one judges; one calls the unexplained failure several times.
    assert option == FLOAT32 or list(by_process.values()) == [2, 1, REPEATED]


@pytest.mark.slow
def test_a_feature_that_is_declared_and_refused_fails_the_run(tmp_path: Path) -> None:
    """No case failed, but the run fails and names the feature."""
    done = run(plug_in(tmp_path, KERNELS), "--impl", "mykernels.py:refuses_windows", *FLOAT32)
    assert done.returncode == 1
    assert " failed" not in done.stdout.splitlines()[-1]
    assert "FAILED: mykernels.py:refuses_windows: feature window is declared and refused in all " in done.stdout


@pytest.mark.slow
def test_a_selection_of_cases_says_nothing_of_a_feature(tmp_path: Path) -> None:
    """Refusing all selected cases of a feature is only a hint, as other cases of it may be accepted."""
    options = ("--impl", "mykernels.py:refuses_windows", *FLOAT32, "--case", "plain*", "--case", "window-*")
    done = run(plug_in(tmp_path, KERNELS), *options)
    assert done.returncode == 0, done.stdout
    said = "hint: mykernels.py:refuses_windows: feature window is declared and refused in all "
    assert said in done.stdout
    assert "FAILED" not in done.stdout


#: Two right functions that take a keyword in only one form: a square bias, and a mask with causal and Sq = Sk.
NARROW = """
import numpy as np


def softmax(s):
    top = np.max(s, -1, keepdims=True, initial=-np.inf)
    p = np.exp(s - np.where(np.isneginf(top), 0, top))
    total = p.sum(-1, keepdims=True)
    return p / np.where(total == 0, 1, total)


def scores(q, k, v):
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError("dtypes")
    if q.shape[1] != k.shape[1]:
        raise NotImplementedError("grouped heads")
    return q @ k.swapaxes(-1, -2) * q.dtype.type(q.shape[-1] ** -0.5)


def square_bias(q, k, v, *, bias=None):
    s = scores(q, k, v)
    if bias is not None and not bias.shape[-2:] == s.shape[-2:] == 2 * s.shape[-1:]:
        raise NotImplementedError("a bias is square")
    return (softmax(s if bias is None else s + bias) @ v).astype(q.dtype)


def causal_mask(q, k, v, *, mask=None, is_causal=False):
    s = scores(q, k, v)
    if mask is not None and not (is_causal and s.shape[-2] == s.shape[-1]):
        raise NotImplementedError("a mask goes with causal and Sq = Sk")
    s = s if mask is None else np.where(mask, s, -np.inf)
    if is_causal:
        s = np.where(np.arange(s.shape[-1]) <= np.arange(s.shape[-2])[:, None], s, -np.inf)
    return (softmax(s) @ v).astype(q.dtype)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "feature"), [("square_bias", "bias"), ("causal_mask", "combinations")])
def test_a_keyword_that_is_taken_in_one_form_is_asked_in_it(tmp_path: Path, name: str, feature: str) -> None:
    """A right function passes the cases of that form, and is not reported to refuse its keyword."""
    done = run(plug_in(tmp_path, NARROW), "--impl", f"mykernels.py:{name}", *FLOAT32)
    assert done.returncode == 0, done.stdout
    assert "FAILED" not in done.stdout
    assert re.search(rf"in part[^;]* {feature} \([1-9]", " ".join(done.stdout.split()))


#: A function that compiles each call with a compiler that does not exist; invalid dtypes are refused before.
UNCOMPILED = """
import subprocess


def attention(q, k, v, *, mask=None, is_causal=False):
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError("q, k and v differ in dtype")
    try:
        subprocess.run(["c++-that-is-not-there", "attention.cpp"], check=True)
    except OSError as error:
        raise NotImplementedError(f"cannot compile: {error.strerror}") from error
"""


@pytest.mark.slow
def test_a_broken_compiler_fails_the_run(tmp_path: Path) -> None:
    """A few rightly refused invalid inputs do not make the run green; the words of the refusal are printed."""
    done = run(plug_in(tmp_path, UNCOMPILED), "--impl", "mykernels.py:attention", *FLOAT32)
    assert done.returncode == 1
    said = " ".join(done.stdout.split())
    assert re.search(r"[1-9]\d* passed, \d+ skipped", said)
    assert re.search(
        r"FAILED: mykernels.py:attention on cpu refused \d+ of \d+ calls that its signature promises", said
    )
    assert "'NotImplementedError: cannot compile: No such file or directory'" in said


@pytest.mark.slow
def test_a_broken_compiler_fails_a_quick_run(tmp_path: Path) -> None:
    """Rightly refused invalid inputs do not count as results."""
    done = run(plug_in(tmp_path, UNCOMPILED), "--impl", "mykernels.py:attention", *FLOAT32, "--quick")
    said = " ".join(done.stdout.split())
    assert done.returncode == 1, said
    assert re.search(r"[1-9]\d* passed, \d+ skipped", said)
    assert re.search(r"FAILED: mykernels.py:attention on cpu refused \d+ of \d+ calls", said)


@pytest.mark.slow
def test_a_function_that_takes_anything_declares_nothing(tmp_path: Path) -> None:
    """A refusal by a function with **kwargs is a hint and no failure, as it declares no keyword."""
    options = ("--impl", "mykernels.py:takes_anything", *FLOAT32, "--case", "plain*", "--case", "window-*")
    done = run(plug_in(tmp_path, KERNELS), *options)
    assert done.returncode == 0, done.stdout
    assert "hint: mykernels.py:takes_anything: feature window, which **kwargs or " in done.stdout
    assert "FAILED" not in done.stdout


@pytest.mark.slow
def test_a_required_feature_that_is_unsupported_fails_the_run(tmp_path: Path) -> None:
    """Features that the function has are claimed; a required one that it lacks is named."""
    options = ("--impl", "mykernels.py:attention", *FLOAT32, "--case", "plain*", "--case", "*window*")
    done = run(plug_in(tmp_path, KERNELS), *options, "--require", "core,windows")
    assert done.returncode == 1
    assert "FAILED: mykernels.py:attention on cpu: core is required, but is not judged in full (" in done.stdout
    assert "FAILED: mykernels.py:attention on cpu: windows is required, but is unsupported (16 of 16)" in done.stdout


@pytest.mark.slow
def test_required_features_that_are_kept_pass(tmp_path: Path) -> None:
    """A run with all cases of core and masks passes."""
    options = ("--impl", "mykernels.py:attention", *FLOAT32, "--require", "core,masks")
    done = run(plug_in(tmp_path, KERNELS), *options)
    assert done.returncode == 0, done.stdout
    assert "mykernels.py:attention on cpu in float32: conformant to core, validation, " in done.stdout


@pytest.mark.slow
def test_an_unknown_required_feature_is_a_usage_error(tmp_path: Path) -> None:
    """One sentence with the nearest name is printed before anything runs."""
    done = run(tmp_path, "--require", "maks")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--require maks: no such feature; did you mean masks" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def found(refuses: Callable[[AnyCase], bool]) -> list[Refused]:
    """The refused keywords of an implementation that refuses these cases and passes the others."""
    return refused(results(lambda case: Outcome.UNSUPPORTED if refuses(case) else Outcome.PASSED))


@pytest.mark.parametrize("keyword", [name for name in SDPA.keywords if name not in TOGETHER.values()])
def test_a_keyword_that_is_refused_everywhere_is_found(keyword: str) -> None:
    """The keyword is found, and no other except those that no call gives without it."""
    names = [each.keyword for each in found(lambda case: keyword in case.keywords)]
    assert keyword in names
    assert set(names) <= {keyword, "causal_offset"}


def test_a_refused_keyword_is_counted_in_cases() -> None:
    """The line has the number of cases."""
    (each,) = found(lambda case: "return_weights" in case.keywords)
    assert each.line == (f"mine: feature return_weights is declared and refused in all {each.cases} cases that need it")


def test_a_keyword_that_works_once_is_not_refused() -> None:
    """A keyword is not refused if one of its cases ran, even if it failed."""
    assert found(lambda case: "window" in case.keywords and case.name != "window-both") == []
    made = results(lambda case: Outcome.UNSUPPORTED if "window" in case.keywords else Outcome.PASSED)
    failed = [r for r in made if r.case != "window-both"]
    failed += [r for r in results(lambda case: Outcome.FAILED) if r.case == "window-both"]
    assert refused(failed) == []


@pytest.mark.parametrize(("device", "blamed"), [("cuda", []), ("cpu", ["mask"])])
def test_what_is_known_to_be_refused_on_a_device_is_not_blamed_there(device: str, blamed: list[str]) -> None:
    """The flash kernel of torch is known to have no masks on CUDA; on the CPU it has them."""
    made = results(lambda case: Outcome.UNSUPPORTED if "mask" in case.keywords else Outcome.PASSED)
    named = [replace(r, implementation="torch-sdpa-flash", device=device) for r in made]
    assert [each.keyword for each in refused(named)] == blamed


def test_a_shape_that_is_refused_is_not_taken_for_a_keyword() -> None:
    """A keyword is not blamed if the same call without it is refused too."""
    assert found(lambda case: case.shape.sq != case.shape.sk) == []


def test_everything_refused_blames_no_keyword() -> None:
    """If nothing ran, no keyword is blamed."""
    assert found(lambda case: True) == []


def test_a_keyword_that_is_not_declared_is_not_refused() -> None:
    """A call that is unsupported for lack of the keyword is not a refusal."""
    made = results(lambda case: Outcome.UNSUPPORTED if "window" in case.keywords else Outcome.PASSED)
    lacking = [r if r.outcome is Outcome.PASSED else replace(r, reason="no keyword window") for r in made]
    assert refused(lacking) == []


def test_other_values_of_a_fixed_option_are_not_refused() -> None:
    """A call with another value than the one that a model's graph holds is not a refusal of the keyword."""
    made = results(lambda case: Outcome.UNSUPPORTED if "scale" in case.keywords else Outcome.PASSED)
    fixed = [r if r.outcome is Outcome.PASSED else replace(r, reason="the model is fixed to scale=0.125") for r in made]
    assert refused(fixed) == []


def refused_without_causal(dtype: str) -> list[Refused]:
    """What is refused in the cases of one dtype by an implementation that takes a window only with causal."""
    taken = {"mask", "is_causal", "window", "scale", "return_lse"}
    made = []
    for case in asked_cases().values():
        if case.operator != "sdpa" or dtype not in case.dtypes or not case.keywords <= taken:
            continue
        unsupported = "window" in case.keywords and "is_causal" not in case.keywords
        outcome = Outcome.UNSUPPORTED if unsupported else Outcome.PASSED
        made.append(Result("mine", "cpu", dtype, case.name, case.clauses, outcome))
    return refused(made, (dtype,))


def test_a_dtype_that_has_only_some_forms_of_a_keyword_is_not_conclusive() -> None:
    """No case of float16 has a causal window: that those without causal are refused is only a hint."""
    (window,) = refused_without_causal("float16")
    assert window.keyword == "window"
    assert window.in_part
    assert not refused_without_causal("float32")


def test_a_dtype_that_has_every_form_of_a_keyword_is_conclusive() -> None:
    """In float32 a keyword that is always refused fails the run."""
    made = results(lambda case: Outcome.UNSUPPORTED if "window" in case.keywords else Outcome.PASSED)
    assert [each.in_part for each in refused(made, ("float32",)) if each.keyword == "window"] == [False]
    said = conclude(made, (), {}, (), complete=True, dtypes=("float32",))
    assert any("feature window is declared and refused in all" in line for line in said.failures)
