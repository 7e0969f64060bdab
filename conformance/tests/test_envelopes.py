"""Runs inside an envelope as a user sees them: which cases run, what is printed, and how to rerun them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import jsonschema
import pytest

from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.judging.outcomes import Outcome, Result
from attention_conformance.conformance.results import read
from attention_conformance.conformance.run.run_checks import clause_lines, conclude, little_lines, refusing_lines
from attention_conformance.conformance.tests.test_features import claimed
from attention_conformance.conformance.tests.test_plugin import plug_in, run
from attention_conformance.conformance.tests.test_results import SCHEMA
from attention_conformance.impls.tests import commands, model_files

pytestmark = pytest.mark.slow

#: Right except for the keys after the last whole tile of 64 where there are several tiles.
KERNEL = """
import numpy as np


def attention(q, k, v, *, is_causal=False):
    if q.shape[3] not in (64, 128) or q.shape[3] != v.shape[3]:
        raise NotImplementedError("widths of 64 and 128")
    if k.shape[2] > 64:
        k, v = (a[:, :, : a.shape[2] // 64 * 64] for a in (k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    s = q @ k.swapaxes(-1, -2) * q.shape[3] ** -0.5
    if is_causal:
        s = np.where(np.arange(k.shape[2]) <= np.arange(q.shape[2])[:, None], s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True, initial=-1e30))
    return (p / p.sum(-1, keepdims=True) @ v).astype(q.dtype)


attention.dtypes = ("float32",)


def declared(q, k, v, *, is_causal=False):
    return attention(q, k, v, is_causal=is_causal)


declared.dtypes = ("float32",)
declared.head_widths = (64, 128)
declared.equal_widths = True


def mistaken(q, k, v, *, is_causal=False):
    return attention(q, k, v, is_causal=is_causal)


mistaken.dtypes = ("float32",)
mistaken.head_widths = (96, 128)
mistaken.equal_widths = True


def tired(q, k, v, *, is_causal=False):
    if (k.shape, v.shape[3]) == ((2, 2, 1, 8), 8) and not is_causal and not np.isnan(k).any():
        return np.repeat(v, q.shape[2], axis=2)
    raise NotImplementedError("the compiler is broken")


tired.dtypes = ("float32",)
"""
ONE = ("--impl", "mykernels.py:attention", "--case", "tiles", "--conformance-json", "o.jsonl")


def test_a_mistake_behind_the_first_tile_is_found_at_the_sizes_that_are_taken(tmp_path: Path) -> None:
    """The message gives the sizes, and the result file gives the envelope and the refusals."""
    done = run(plug_in(tmp_path, KERNEL), *ONE)
    assert done.returncode == 1
    assert "k (1, 2, 65, 64)" in done.stdout
    assert "Sizes:    the smallest inside the implementation's envelope" in done.stdout
    assert "mykernels.py:attention (probed): float32; D = Dv in 64, 128; Sq, Sk any" in done.stdout
    lines = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text(encoding="utf-8").splitlines()]
    for line in lines:
        jsonschema.validate(line, SCHEMA)
    (result,) = read(tmp_path / "o.jsonl").results
    assert result.sizes == (1, 2, 2, 17, 65, 64, 64)
    (envelope,) = read(tmp_path / "o.jsonl").header.envelopes
    assert envelope.source == "probed"
    assert any("widths of 64 and 128" in text for text in envelope.refusals)


def test_the_standalone_script_has_the_sizes(tmp_path: Path) -> None:
    """The command prints a script with those sizes, which fails by itself."""
    plug_in(tmp_path, KERNEL)
    command = [sys.executable, "-m", "attention_conformance", "script", "--impl", "mykernels.py:attention"]
    done = commands.run([*command, "--case", "tiles"], cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (tmp_path / "script.py").write_text(done.stdout)
    alone = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert alone.returncode == 1, alone.stdout + alone.stderr


def test_a_declared_envelope_is_asked_as_it_says(tmp_path: Path) -> None:
    """Cases run inside the declared envelope; one that cannot says what it needs and is no failure."""
    options = ("--impl", "mykernels.py:declared", "--case", "value-width-causal", "--case", "causal-square")
    done = run(plug_in(tmp_path, KERNEL), *options, "--conformance-json", "o.jsonl")
    assert done.returncode == 0, done.stdout
    assert "mykernels.py:declared (declared)" in done.stdout
    by_case = {result.case: result for result in read(tmp_path / "o.jsonl").results}
    assert by_case["causal-square"].outcome is Outcome.PASSED
    assert by_case["value-width-causal"].outcome is Outcome.NOT_APPLICABLE
    assert by_case["value-width-causal"].reason == "not applicable: needs Dv > D"


def test_a_declaration_that_does_not_hold_is_told(tmp_path: Path) -> None:
    """The terminal and the result file report which declared size is refused, and why."""
    options = ("--impl", "mykernels.py:mistaken", "--case", "plain", "--conformance-json", "o.jsonl")
    done = run(plug_in(tmp_path, KERNEL), *options)
    refused = "declared D in 96, 128; refused: D = 96 (NotImplementedError: widths of 64 and 128)"
    assert f"  {refused}\n" in done.stdout
    (envelope,) = read(tmp_path / "o.jsonl").header.envelopes
    assert envelope.disagreements == (refused,)


def test_cases_at_the_sizes_of_kernels_are_asked_by_name(tmp_path: Path) -> None:
    """At 65 keys the last tile is lost, at 64 there is none; the rerun command names the case."""
    names = ("kernel-edges-*-q1-k65-*-float32", "kernel-edges-*-q1-k64-*-float32")
    options = [option for name in names for option in ("--case", name)]
    done = run(plug_in(tmp_path, KERNEL), "--impl", "mykernels.py:attention", *options, "--conformance-json", "o.jsonl")
    assert done.returncode == 1
    found = [r for r in read(tmp_path / "o.jsonl").results if r.outcome in (Outcome.PASSED, Outcome.FAILED)]
    assert {r.outcome for r in found if "-k64-" in r.case} == {Outcome.PASSED}
    assert {r.outcome for r in found if "-k65-" in r.case} == {Outcome.FAILED}
    case = next(r.case for r in found if r.outcome is Outcome.FAILED)
    assert f"--case {case}" in done.stdout
    again = run(tmp_path, "--impl", "mykernels.py:attention", "--case", case)
    assert "1 failed" in again.stdout


def test_a_function_that_refuses_nearly_everything_is_red(tmp_path: Path) -> None:
    """Two calls that run do not make the run green, and the words of the refusals are printed."""
    done = run(plug_in(tmp_path, KERNEL), "--impl", "mykernels.py:tired")
    assert done.returncode == 1
    assert "\n2 passed, " in done.stdout
    assert "calls that its signature promises" in done.stdout
    assert "with 'NotImplementedError: the compiler is broken'" in done.stdout


def test_a_dtype_that_is_declared_and_refused_shows(tmp_path: Path) -> None:
    """A declared dtype that is refused is not dropped by the probe; an undeclared one is dropped."""
    text = KERNEL.replace('attention.dtypes = ("float32",)', "", 1).replace(
        "    if q.shape[3] not in (64, 128) or q.shape[3] != v.shape[3]:",
        '    if q.dtype != "float32":',
    )
    plug_in(tmp_path, text)
    left = run(tmp_path, "--impl", "mykernels.py:attention", "--case", "plain")
    assert "1 passed" in left.stdout
    assert "skipped" not in left.stdout
    assert "mykernels.py:attention (probed): float32; D, Dv any" in left.stdout
    plug_in(tmp_path, text + '\nattention.dtypes = ("float32", "float16")\n')
    kept = run(tmp_path, "--impl", "mykernels.py:attention", "--case", "plain")
    assert "1 passed, 1 skipped" in kept.stdout


def test_a_model_with_static_axes_is_asked_at_them(tmp_path: Path) -> None:
    """A model with static axes is judged at exactly those sizes."""
    model_files.write(tmp_path / "static.onnx", shape=(1, 8, 128, 64), scale=0.125)
    done = run(
        tmp_path, "--impl", "static.onnx", "--case", "plain*", "--case", "tiles*", "--conformance-json", "o.jsonl"
    )
    assert done.returncode == 0, done.stdout
    found = read(tmp_path / "o.jsonl").results
    assert {result.sizes for result in found if result.outcome is Outcome.PASSED} == {(1, 8, 8, 128, 128, 64, 64)}
    assert sum(result.outcome is Outcome.PASSED for result in found) >= 4


# Conclusions from results.


def results(of: Iterable[tuple[str, Outcome, str]]) -> list[Result]:
    """Results of cases of sdpa in float32, by name, outcome and reason."""
    known = every_case()
    return [Result("it", "cpu", "float32", name, known[name].clauses, what, reason=why) for name, what, why in of]


REFUSED, RAN = (Outcome.UNSUPPORTED, "NotImplementedError: no"), (Outcome.PASSED, "")
SOME = [name for name, case in every_case().items() if case.operator == "sdpa" and "float32" in case.dtypes][:40]


def test_who_refuses_nearly_all_that_is_promised_fails() -> None:
    """Refusing more than nine in ten promised calls fails; missing keywords and cases not applicable do not count."""
    refused = [(name, *REFUSED) for name in SOME[:38]]
    (line,) = refusing_lines(results([*refused, *((name, *RAN) for name in SOME[38:])]))
    assert line == "it on cpu refused 38 of 40 calls that its signature promises, 38 with 'NotImplementedError: no'"
    assert not refusing_lines(results([*refused[:30], *((name, *RAN) for name in SOME[30:])]))
    lacking = (Outcome.UNSUPPORTED, "no keyword mask")
    assert not refusing_lines(results([(name, *lacking) for name in SOME]))
    assert not refusing_lines(results([(name, Outcome.NOT_APPLICABLE, "needs") for name in SOME]))


def test_other_values_of_a_fixed_option_are_not_promised() -> None:
    """Refusing them fails nothing, however many there are; a function's own refusal in the same words still fails."""
    kept = [(name, *RAN) for name in SOME[38:]]
    fixed = "the model is fixed to is_causal=True"
    assert not refusing_lines(results([*((name, Outcome.UNSUPPORTED, fixed) for name in SOME[:38]), *kept]))
    said = (Outcome.UNSUPPORTED, f"NotImplementedError: {fixed}")
    assert refusing_lines(results([*((name, *said) for name in SOME[:38]), *kept]))


def test_a_model_with_a_fixed_option_that_refuses_what_it_promises_fails() -> None:
    """Calls with the fixed value are promised: a model that refuses nearly all of them is broken."""
    fixed = [(name, Outcome.UNSUPPORTED, "the model is fixed to is_causal=True") for name in SOME[:15]]
    (line,) = refusing_lines(results([*fixed, *((name, *REFUSED) for name in SOME[15:])]))
    assert line.startswith("it on cpu refused 25 of 25 calls")


@pytest.mark.parametrize("whole", [True, False])
def test_a_selection_in_which_nearly_all_is_refused_fails_nothing(whole: bool) -> None:
    """Refusing nearly all of a selection is only a hint: it may hold just the refused calls (``--quick`` for ORT)."""
    refused = [(name, *REFUSED) for name in SOME[:38]]
    found = results([*refused, *((name, *RAN) for name in SOME[38:])])
    said = conclude(found, {"it"}, {}, (), complete=True, whole=whole)
    where, other = (said.failures, said.hints) if whole else (said.hints, said.failures)
    assert any("refused 38 of 40 calls" in line for line in where)
    assert not any("refused 38 of 40 calls" in line for line in other)


@pytest.mark.parametrize(("ran", "fails"), [("invalid-lengths", True), ("plain", False)])
def test_a_quick_run_in_which_every_valid_call_is_refused_fails(ran: str, fails: bool) -> None:
    """A quick run fails unless a valid call ran; an invalid one that was refused does not count."""
    found = results([*((name, *REFUSED) for name in SOME if name not in ("plain", "invalid-lengths")), (ran, *RAN)])
    said = conclude(found, {"it"}, {}, (), complete=True, whole=False, quick=True)
    assert any("calls that its signature promises" in line for line in said.failures) is fails
    assert any("calls that its signature promises" in line for line in said.hints) is not fails
    assert not conclude(found, {"it"}, {}, (), complete=True, whole=False).failures


def test_none_of_the_published_results_is_that_of_something_broken() -> None:
    """No published result exceeds the limit of refusals."""
    published = read(Path(__file__).parents[2] / "reports" / "published" / "conformance.jsonl.zst")
    assert len({result.implementation for result in published.results}) > 20
    assert not refusing_lines(published.results)


def test_a_run_that_could_ask_little_says_so() -> None:
    """A run that could test less than half of the promised clauses says so; missing keywords promise nothing."""
    few = [("plain", *RAN), ("softcap", *REFUSED), ("mask", *REFUSED), ("bias", *REFUSED)]
    (line,) = little_lines(results(few))
    assert line == "only 1 of the 4 clauses that the signature of it promises could be tested on cpu"
    assert not little_lines(results([few[0], few[1]]))
    assert not little_lines(results([few[0], *((n, Outcome.UNSUPPORTED, "no keyword x") for n, *_ in few[1:])]))


def test_clauses_that_cannot_be_asked_are_named_with_the_reason() -> None:
    """A clause is tested by one case; a clause without a tested case is named with the reason."""
    made = results(
        [
            ("plain", *RAN),
            ("heads-4-over-2", Outcome.NOT_APPLICABLE, "not applicable: needs group > 1"),
            ("empty-row", Outcome.NOT_APPLICABLE, "not applicable: needs Sq > 1"),
            ("empty-all", *RAN),
        ]
    )
    (line,) = clause_lines(made)
    told = "it on cpu: 2 of 3 clauses of its signature tested; not SDPA-17 (not applicable: needs group > 1)"
    assert line == told


def test_a_claim_is_over_what_can_be_asked() -> None:
    """Cases that are not applicable do not count in the denominator, and do not make an implementation conformant."""
    causal = [
        (name, *RAN)
        for name, case in every_case().items()
        if case.operator == "sdpa" and case.keywords == {"is_causal"} and "float32" in case.dtypes
    ]
    whole = claimed(results(causal))["causal"]
    less = claimed(results([*causal[1:], (causal[0][0], Outcome.NOT_APPLICABLE, "needs")]))["causal"]
    assert less.cases == whole.cases - 1
    assert "causal" not in claimed(results([(name, Outcome.NOT_APPLICABLE, "needs") for name, *_ in causal]))
