"""Checking: external results get the same outcome, words and numbers as in a run of the suite."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from attention_conformance.cli import main
from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.judging.judge import judge
from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.results import read
from attention_conformance.conformance.tests.test_judge import half_weights
from attention_conformance.conformance.tests.test_results import SCHEMA
from attention_conformance.conformance.tests.vectors import RIGHT, change, compute, fake, write_words
from attention_conformance.conformance.vectors.check import Checked, Origin, check
from attention_conformance.conformance.vectors.commands import export
from attention_conformance.conformance.vectors.files import encode
from attention_conformance.conformance.vectors.index import Chosen, read_index
from attention_conformance.impls.calls import Request, call
from attention_conformance.impls.contract import Profile

pytestmark = pytest.mark.slow

#: Cases of every kind: plain, several results, repeated, refused, SHOULD, decoding, layers, gradients.
CASES = (
    "plain",
    "lse",
    "weights-and-lse",
    "repeat",
    "invalid-widths",
    "masked-nan-causal",
    "nan-query",
    "decode-results",
    "mha-plain",
    "mha-weights",
    "sublayer-post-norm",
    "grad-plain",
    "tiles",
    "memory-sliced",
    "range-product-overflows",
)


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vectors of some cases in every dtype."""
    folder = tmp_path_factory.mktemp("check") / "vectors"
    export(folder, Chosen(cases=CASES))
    return folder


@pytest.fixture(scope="module")
def computed(vectors: Path) -> Path:
    """Right results for all of them."""
    return compute(vectors, vectors.with_name("computed"))


@pytest.fixture
def results(computed: Path, tmp_path: Path) -> Path:
    """Right results, for a test to change."""
    return Path(shutil.copytree(computed, tmp_path / "results"))


def checked(vectors: Path, results: Path, case: str, dtype: str = "float32", *profiles: Profile) -> Result:
    """The result of one vector."""
    (result,) = check(
        vectors, results, Chosen(cases=[case], dtypes=[dtype]), Origin("mine", "moon", profiles), None
    ).results
    return result


def test_right_results_pass(vectors: Path, computed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The results of right implementations pass in every dtype, with exit code 0 and the table of a run."""
    assert main(["check-vectors", str(vectors), str(computed), "--name", "mine", "--device", "moon"]) == 0
    (row,) = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("mine")]
    assert row[:4] == ["mine", "moon", str(len(read_index(vectors).vectors)), "0"]  # passed, failed, and nothing else


def test_a_result_is_judged_as_it_is_here(vectors: Path, computed: Path) -> None:
    """Outcome, share of the bound and met profiles are those of the suite's own judging of the implementation."""
    origin = Origin("mine", "moon")
    for result in check(vectors, computed, Chosen(), origin, None).results:
        case = every_case()[result.case]
        inputs = case.inputs(result.dtype)
        request = Request("cpu", inputs.arrays, inputs.keywords, memory=case.memory, repeats=case.repeats)
        profile = origin.profile(result.dtype).value
        blank = Result("mine", "moon", result.dtype, case.name, case.clauses, Outcome.PASSED, profile=profile)
        here = judge(call(RIGHT[case.operator], request), case, blank)
        assert (result.outcome, result.share, result.meets) == (here.outcome, here.share, here.meets)
        assert (result.clauses, result.profile, result.reason) == (here.clauses, here.profile, here.reason)


def test_a_wrong_result_gets_the_message_that_it_gets_here(vectors: Path, tmp_path: Path) -> None:
    """The message of a wrong value is that of ``pytest conformance``, except for the rerun command."""
    compute(vectors, tmp_path, {**RIGHT, **fake("wrong")})
    theirs = checked(vectors, tmp_path, "plain")
    case, wrong = every_case()["plain"], fake("wrong")["sdpa"]
    blank = Result("mine", "moon", "float32", "plain", case.clauses, Outcome.PASSED, profile="wide")
    here = judge(call(wrong, Request("cpu", case.inputs("float32").arrays)), case, blank)
    assert theirs.outcome is Outcome.FAILED
    assert (theirs.broken, theirs.reason, theirs.share) == (here.broken, here.reason, here.share)
    assert theirs.message.splitlines()[:-1] == here.message.splitlines()[:-1]
    rerun = f"Rerun:    attention-conformance check-vectors {vectors} {tmp_path} --case plain --dtype float32"
    assert theirs.message.splitlines()[-1] == rerun


def arrays(edit: Callable[[dict[str, np.ndarray]], Any]) -> Callable[[Path], None]:
    """An edit of the arrays of a result."""
    return lambda file: change(file, edit)


def words(outcome: str) -> Callable[[Path], None]:
    """An edit that writes words instead of arrays."""
    return lambda file: write_words(file, outcome, "because")


def one_element(value: float) -> Callable[[dict[str, np.ndarray]], None]:
    """An edit of one element of the output."""

    def edit(a: dict[str, np.ndarray]) -> None:
        a["output"][(0,) * a["output"].ndim] = value

    return edit


@pytest.mark.parametrize(
    ("case", "harm", "failure", "broken", "said"),
    [
        ("plain", arrays(one_element(9)), Failure.VALUE, "SDPA-1", "1 of 160 elements wrong"),
        ("plain", arrays(one_element(np.nan)), Failure.VALUE, "SDPA-1", "NaN"),
        ("plain", arrays(one_element(np.inf)), Failure.VALUE, "SDPA-1", "infinity"),
        ("plain", arrays(lambda a: a.update(output=0 * a["output"])), Failure.VALUE, "SDPA-1", "zeros"),
        ("nan-query", arrays(lambda a: a.update(output=np.nan_to_num(a["output"]))), Failure.VALUE, "SDPA-23", ""),
        ("lse", arrays(lambda a: a.update(lse=a["lse"] / np.float32(np.log(2)))), Failure.VALUE, "SDPA-19", "lse"),
        ("lse", arrays(lambda a: a.update(lse=a["lse"].astype(np.float16))), Failure.DTYPE, "SDPA-19", "float16"),
        ("plain", arrays(lambda a: a.update(output=a["output"].astype(float))), Failure.DTYPE, "SDPA-27", "float64"),
        ("plain", arrays(lambda a: a.update(output=a["output"] > 0)), Failure.DTYPE, "SDPA-27", "bool"),
        ("plain", arrays(lambda a: a.update(output=a["output"][:1])), Failure.SHAPE, "SDPA-1", "(1, 2, 5, 8)"),
        ("plain", arrays(lambda a: a.update(output=a["output"].ravel())), Failure.SHAPE, "SDPA-1", "(160,)"),
        ("weights-and-lse", arrays(lambda a: a.pop("lse")), Failure.ERROR, "SDPA-18", "no result lse"),
        ("plain", arrays(lambda a: a.clear()), Failure.ERROR, "SDPA-1", "no result output"),
        ("plain", arrays(lambda a: a.update(lse=a["output"])), Failure.ERROR, "SDPA-1", "not asked for: lse"),
        ("plain", words("error"), Failure.ERROR, "SDPA-1", "because"),
        ("invalid-widths", lambda f: _accept(f), Failure.NO_ERROR, "SDPA-32", "accepted"),
        ("repeat", arrays(lambda a: a.pop("output.3")), Failure.ERROR, "SDPA-29", "no result output.3"),
        ("repeat", arrays(lambda a: a["output.5"].__imul__(2)), Failure.UNREPEATABLE, "SDPA-29", "5 equal calls"),
        ("plain", arrays(lambda a: a.update({"input.q": 0 * a["output"]})), Failure.MODIFIED, "SDPA-28", "q modified"),
        ("decode-results", arrays(lambda a: a["present_key"].__imul__(2)), Failure.VALUE, "DEC-3", "present_key"),
        ("mha-weights", arrays(lambda a: a["weights"].__imul__(2)), Failure.VALUE, "MHA-14", "weights"),
        ("sublayer-post-norm", arrays(one_element(99)), Failure.VALUE, "SUB-1", "output"),
        ("grad-plain", arrays(lambda a: a["grad_k"].__imul__(2)), Failure.VALUE, "GRAD-3", "grad_k"),
    ],
)
def test_a_wrong_result_fails_in_its_way(
    vectors: Path, results: Path, case: str, harm: Callable[[Path], None], failure: Failure, broken: str, said: str
) -> None:
    """Each way to be wrong is distinguished and blamed on its clause, and the run exits with 1."""
    operator = every_case()[case].operator
    harm(results / operator / "float32" / f"{case}.safetensors")
    result = checked(vectors, results, case)
    assert (result.outcome, result.failure, result.broken) == (Outcome.FAILED, failure, broken)
    assert said in result.reason
    assert f"case {case}: wrong by {failure.value}" in result.message
    assert main(["check-vectors", str(vectors), str(results)]) == 1


def _accept(file: Path) -> None:
    file.with_suffix(".json").unlink()
    file.write_bytes(encode({"output": np.zeros((2, 2, 5, 8), np.float32)}))


def test_the_input_as_it_was_is_right(vectors: Path, results: Path) -> None:
    """Inputs that come back unchanged pass."""
    file = results / "sdpa" / "float32" / "plain.safetensors"
    q = np.array(every_case()["plain"].inputs("float32").arrays["q"])
    change(file, lambda a: a.update({"input.q": q}))
    assert checked(vectors, results, "plain").outcome is Outcome.PASSED


def test_a_should_clause_advises(vectors: Path, results: Path) -> None:
    """Wrong values in a case of a SHOULD clause fail nothing."""
    change(results / "sdpa" / "float32" / "masked-nan-causal.safetensors", one_element(np.nan))
    result = checked(vectors, results, "masked-nan-causal")
    assert (result.outcome, result.broken) == (Outcome.ADVISORY, "SDPA-22")
    assert main(["check-vectors", str(vectors), str(results)]) == 0


def test_unsupported_has_its_reason(vectors: Path, results: Path) -> None:
    """An unsupported case fails nothing, and has its reason."""
    write_words(results / "sdpa" / "float32" / "plain.safetensors", "unsupported", "only\non Tuesdays")
    result = checked(vectors, results, "plain")
    assert (result.outcome, result.reason) == (Outcome.UNSUPPORTED, "only on Tuesdays")
    assert main(["check-vectors", str(vectors), str(results)]) == 0


def test_an_error_is_told_how_to_say_unsupported(vectors: Path, results: Path) -> None:
    """The hint is about files, not about exceptions in Python."""
    write_words(results / "sdpa" / "float32" / "plain.safetensors", "error", "no kernel")
    message = checked(vectors, results, "plain").message
    assert 'Hint:     write a .json with "unsupported"' in message
    assert "NotImplementedError" not in message


def test_a_missing_result_is_not_run(vectors: Path, results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A vector without a result is named, counts as no outcome, and makes the run exit with 1."""
    (results / "sdpa" / "float32" / "plain.safetensors").unlink()
    whole = check(vectors, results, Chosen(), Origin("mine"), None)
    assert whole.not_run == (("sdpa", "plain", "float32"),)
    assert len(whole.results) == len(read_index(vectors).vectors) - 1
    assert main(["check-vectors", str(vectors), str(results)]) == 1
    assert (
        f"not run: 1 of {len(whole.results) + 1}, which have no result (sdpa plain float32)" in capsys.readouterr().out
    )
    assert main(["check-vectors", str(vectors), str(results), "--case", "tiles"]) == 0


def test_nothing_executed_is_not_right(vectors: Path, results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder in which everything is unsupported exits with 1."""
    write_words(results / "sdpa" / "float32" / "plain.safetensors", "unsupported", "not yet")
    assert main(["check-vectors", str(vectors), str(results), "--case", "plain", "--dtype", "float32"]) == 1
    assert "FAILED: nothing was executed" in capsys.readouterr().out


def test_an_empty_folder_passes_nothing(vectors: Path, tmp_path: Path) -> None:
    """A folder without results does not pass."""
    whole = check(vectors, tmp_path, Chosen(), Origin("mine"), None)
    assert not whole.right
    assert not whole.results
    assert not Checked((), ()).right


def test_the_declared_profile_decides(vectors: Path, results: Path) -> None:
    """Weights rounded to float16 break the bound of ``wide`` and keep that of ``fused``; the default is ``storage``."""
    case = every_case()["tiles"]
    output = half_weights(**case.inputs("float16").arrays)
    change(results / "sdpa" / "float16" / "tiles.safetensors", lambda a: a.update(output=output))
    wide = checked(vectors, results, "tiles", "float16", Profile.WIDE)
    assert (wide.outcome, wide.broken, wide.profile) == (Outcome.FAILED, "SDPA-25", "wide")
    assert "keeps the bound of profile fused, declares wide" in wide.reason
    assert "--profile wide" in wide.message.splitlines()[-1]
    assert checked(vectors, results, "tiles", "float16", Profile.FUSED).outcome is Outcome.PASSED
    assert checked(vectors, results, "tiles", "float16").profile == "storage"


def test_a_profile_is_for_the_dtypes_that_have_it() -> None:
    """A declared ``fused`` leaves the profile of other dtypes, such as float32, unchanged."""
    origin = Origin("mine", "moon", (Profile.FUSED, Profile.TF32))
    declared = {dtype: origin.profile(dtype).value for dtype in ("float64", "float32", "float16", "bfloat16")}
    assert declared == {"float64": "wide", "float32": "tf32", "float16": "fused", "bfloat16": "fused"}


def test_the_result_file_is_that_of_a_run(vectors: Path, results: Path, tmp_path: Path) -> None:
    """The JSON lines follow the schema, mark the versions as external, and the reports read them."""
    path = tmp_path / "mine.jsonl"
    change(results / "sdpa" / "float32" / "plain.safetensors", one_element(np.nan))
    options = ["--name", "mine", "--device", "moon", "--conformance-json", str(path)]
    assert main(["check-vectors", str(vectors), str(results), *options]) == 1
    for line in path.read_text(encoding="utf-8").splitlines():
        jsonschema.validate(json.loads(line), SCHEMA)
    run = read(path)
    assert run.complete
    assert run.header.versions == {"mine": "elsewhere"}
    assert run.header.machine == "elsewhere"
    assert {(result.implementation, result.device) for result in run.results} == {("mine", "moon")}
    assert main(["report", str(path), "-o", str(tmp_path / "report")]) == 0
    assert "1 failed" in (tmp_path / "report" / "report.md").read_text(encoding="utf-8")


def test_a_file_with_results_missing_is_incomplete(vectors: Path, results: Path, tmp_path: Path) -> None:
    """If a vector was not run the result file has no footer, so that a report says so."""
    path = tmp_path / "mine.jsonl"
    (results / "sdpa" / "float32" / "plain.safetensors").unlink()
    assert main(["check-vectors", str(vectors), str(results), "--conformance-json", str(path)]) == 1
    assert not read(path).complete


def test_what_a_wrong_output_looks_like_is_said(vectors: Path, results: Path) -> None:
    """The mean of the values, past ones included, is recognised as in a run."""
    for case in ("tiles", "decode-results"):
        inputs = every_case()[case].inputs("float32")
        v = np.concatenate(
            [inputs.keywords.get("past_value", inputs.arrays["v"][:, :, :0]), inputs.arrays["v"]], axis=2
        )

        def mean(a: dict[str, np.ndarray], v: np.ndarray = v) -> None:
            a["output"][:] = v.mean(2, keepdims=True)

        change(results / "sdpa" / "float32" / f"{case}.safetensors", mean)
        assert checked(vectors, results, case).error_pattern == "the mean of v"
