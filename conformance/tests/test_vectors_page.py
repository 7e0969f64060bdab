"""VECTORS.md: its checker, run as printed and without this suite, agrees with ``check-vectors``."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import fields

from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.conformance.tests.test_judge import half_weights
from attention_conformance.conformance.tests.vectors import change, compute, fake, write_words
from attention_conformance.conformance.vectors.check import Checked, Origin, check
from attention_conformance.conformance.vectors.commands import export
from attention_conformance.conformance.vectors.index import Chosen, read_index, read_vector
from attention_conformance.conformance.vectors.vector import About
from attention_conformance.impls.contract import Profile
from attention_conformance.impls.memory_layouts import LAYOUTS

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[1] / "VECTORS.md").read_text(encoding="utf-8")
(PRINTED,) = re.findall(r"```python\n(# check_vectors\.py.*?)```", PAGE, re.DOTALL)

PLAIN = "sdpa/float32/plain.safetensors"


def run(vectors: Path, results: Path, *profile: str) -> tuple[int, list[str]]:
    """Exit code and lines of the printed checker, in a folder and a process without access to this suite."""
    script = results.with_name("check_vectors.py")
    script.write_text(PRINTED, encoding="utf-8")
    command = [sys.executable, "-I", str(script), str(vectors), str(results), *profile]
    done = subprocess.run(command, capture_output=True, text=True, cwd=results, check=False)
    assert not done.stderr
    return done.returncode, done.stdout.splitlines()


def agree(vectors: Path, results: Path, *profile: str) -> Checked:
    """Check that both checkers agree on every vector; return the suite's result."""
    origin = Origin("mine", "moon", [Profile(each) for each in profile])
    whole = check(vectors, results, Chosen(), origin, None)
    code, lines = run(vectors, results, *profile)
    said = dict(line.split(": ", 1) for line in lines)
    failed = {f"{r.case} {r.dtype}" for r in whole.results if r.outcome is Outcome.FAILED}
    failed |= {f"{case} {dtype}" for _, case, dtype in whole.not_run}
    theirs = {f"{Path(name).stem} {Path(name).parent.name}" for name, text in said.items() if text[:8] != "advisory"}
    assert theirs == failed
    assert code == (1 if failed else 0)
    return whole


def test_it_needs_numpy_and_safetensors_alone() -> None:
    """The printed checker imports only NumPy, safetensors and the standard library, and has the stated length."""
    nodes = [node for node in ast.walk(ast.parse(PRINTED)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {a.name for node in nodes if isinstance(node, ast.Import) for a in node.names}
    names |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    assert names == {"json", "sys", "pathlib", "numpy", "safetensors"}
    lines = [line for line in PRINTED.splitlines() if line and not line.startswith("#")]
    assert f"its {len(lines)} lines" in PAGE


def test_right_results_pass(vectors: Path) -> None:
    """Right results of every case and dtype are accepted silently."""
    assert run(vectors, vectors.with_name("results")) == (0, [])


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda a: a["output"].__iadd__(1e-3), "output is wrong in 160 of 160 elements"),
        (lambda a: a["output"].__setitem__((0, 0, 0, 0), np.nan), "output is wrong in 1 of 160 elements"),
        (lambda a: a["output"].__setitem__((0, 0, 0, 0), np.inf), "output is wrong in 1 of 160 elements"),
        (lambda a: a.update(output=a["output"].astype(float)), "output is float64 (2, 2, 5, 8), expected ['float32']"),
        (lambda a: a.update(output=a["output"].astype(np.float16)), "output is float16"),
        (lambda a: a.update(output=a["output"][:, :1]), "output is float32 (2, 1, 5, 8), expected"),
        (lambda a: a.update(output=a["output"].ravel()), "output is float32 (160,), expected"),
        (lambda a: a.pop("output"), "output is missing"),
    ],
)
def test_a_wrong_result_is_rejected(vectors: Path, harm: Callable, said: str) -> None:
    """Wrong values, NaN for a number, a wrong dtype or shape and a missing result are each reported for the vector."""
    results = vectors.with_name("results")
    change(results / PLAIN, harm)
    code, (line,) = run(vectors, results)
    assert code == 1
    assert line.startswith(f"{PLAIN}: {said}")
    agree(vectors, results)


def test_a_missing_lse_is_rejected(vectors: Path) -> None:
    """A missing result other than the output is reported by name."""
    results = vectors.with_name("results")
    change(results / "sdpa/float32/lse.safetensors", lambda a: a.pop("lse"))
    assert run(vectors, results) == (
        1,
        ["sdpa/float32/lse.safetensors: lse is missing (0,), expected ['float32', 'float64'] (2, 2, 5)"],
    )


def test_what_has_no_result_is_not_run(vectors: Path) -> None:
    """A vector without a result does not pass."""
    results = vectors.with_name("results")
    (results / PLAIN).unlink()
    assert run(vectors, results) == (1, [f"{PLAIN}: not run"])
    agree(vectors, results)


def test_words_are_read(vectors: Path) -> None:
    """An "error" for a valid input is a failure, and "unsupported" is not."""
    results = vectors.with_name("results")
    write_words(results / PLAIN, "error", "no kernel")
    assert run(vectors, results) == (1, [f"{PLAIN}: error: no kernel"])
    write_words(results / PLAIN, "unsupported", "no kernel")
    assert run(vectors, results) == (0, [])


def test_both_accept_right_results_of_every_vector(tmp_path: Path) -> None:
    """Both checkers accept the results of right implementations for the whole export."""
    export(tmp_path / "vectors", Chosen())
    whole = agree(tmp_path / "vectors", compute(tmp_path / "vectors", tmp_path / "results"))
    assert {result.outcome for result in whole.results} == {Outcome.PASSED}


@pytest.fixture(scope="module")
def of_sdpa(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vectors of every case of sdpa in bfloat16, and those in float32 about NaN, results or refusals."""
    folder = tmp_path_factory.mktemp("sdpa")
    export(folder / "half", Chosen(operators=["sdpa"], dtypes=["bfloat16"]))
    export(
        folder / "float",
        Chosen(["sdpa"], ["*nan*", "lse*", "weights*", "invalid-*", "range-*", "repeat*"], ["float32"]),
    )
    return folder


@pytest.mark.parametrize("name", ["wrong", "masked_nan_leaks", "base_two", "careless"])
@pytest.mark.parametrize("vectors", ["half", "float"])
def test_both_reject_the_same_results(name: str, vectors: str, of_sdpa: Path, tmp_path: Path) -> None:
    """Both checkers reject the results of a wrong function in the same cases."""
    whole = agree(of_sdpa / vectors, compute(of_sdpa / vectors, tmp_path / "results", fake(name)))
    outcomes = {result.outcome for result in whole.results}
    assert outcomes & {Outcome.FAILED, Outcome.ADVISORY}
    assert Outcome.UNSUPPORTED in outcomes


def test_both_take_the_declared_profile(tmp_path: Path) -> None:
    """Both checkers reject under ``wide`` a result that keeps the bound of ``fused``."""
    export(tmp_path / "vectors", Chosen(cases=["tiles"]))
    results = compute(tmp_path / "vectors", tmp_path / "results")
    (entry,) = [e for e in read_index(tmp_path / "vectors").vectors if e.dtype == "float16"]
    inputs = read_vector(tmp_path / "vectors", entry).arrays
    output = half_weights(*(inputs[f"input.{name}"] for name in "qkv"))
    change(results / entry.tensors.file, lambda a: a.update(output=output))
    assert agree(tmp_path / "vectors", results, "fused").right
    assert not agree(tmp_path / "vectors", results, "wide").right


def test_the_page_has_every_field_and_layout() -> None:
    """Each field of a description, and each memory layout, is in a table."""
    rows = set(re.findall(r"^\| (`.+?) \|", PAGE, re.MULTILINE))
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert {field.name for field in fields(About)} | {"format"} | set(LAYOUTS) <= named
