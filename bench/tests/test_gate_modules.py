"""Files in KernelBench's form: what a problem asks, and candidates that are modules."""

from __future__ import annotations

from pathlib import Path

import pytest

from attention_conformance.bench.gate import command
from attention_conformance.bench.tests.candidates import PRELUDES, PROBLEM, Candidate
from attention_conformance.impls.contract import InputError

pytest.importorskip("torch")

MODULE = """
class ModelNew(torch.nn.Module):
    def forward(self, a, b, c):
        return {}
"""


def problem(folder: Path, text: str) -> Path:
    """The file of a problem."""
    file = folder / "problem.py"
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.slow(5)
@pytest.mark.parametrize(
    ("model", "inputs", "order", "axes", "sizes", "form"),
    [
        ("torch.softmax(a @ b.mT / 4, -1) @ c", "[rand(2, 3, 9, 16), rand(2, 3, 7, 16), rand(2, 3, 7, 5)]", (0, 1, 2),
         "BHSD", (2, 3, 3, 9, 7, 16, 5), ""),
        ("torch.softmax(c @ a.mT / 4, -1) @ b", "[rand(2, 3, 7, 16), rand(2, 3, 7, 5), rand(2, 3, 9, 16)]", (2, 0, 1),
         "BHSD", (2, 3, 3, 9, 7, 16, 5), ""),
        ("torch.nn.functional.scaled_dot_product_attention(*[x.transpose(1, 2) for x in (a, b, c)]).transpose(1, 2)",
         "[rand(2, 9, 3, 16)] * 3", (0, 1, 2), "BSHD", (2, 3, 3, 9, 9, 16, 16), ""),
        ("torch.nn.functional.scaled_dot_product_attention(a, b, c)", "[rand(4, 9, 16).half()] * 3", (0, 1, 2), "BSD",
         (4, 1, 1, 9, 9, 16, 16), ""),
        ("torch.nn.functional.scaled_dot_product_attention(a, b, c, is_causal=True)",
         "[rand(2, 3, 5, 16), *[rand(2, 3, 7, 16)] * 2]", (0, 1, 2), "BHSD", (2, 3, 3, 5, 7, 16, 16), "causal"),
    ],
)  # fmt: skip
def test_a_problem_says_which_input_is_which(
    model: str, inputs: str, order: tuple[int, ...], axes: str, sizes: tuple[int, ...], form: str, tmp_path: Path
) -> None:
    """The answers of its own Model decide; its sizes are those of its inputs."""
    text = f"import torch\nfrom torch import rand\n{MODULE.replace('ModelNew', 'Model').format(model)}\n"
    text += f"def get_inputs():\n    return {inputs}\n\ndef get_init_inputs():\n    return []\n"
    found = command.problem_of(str(problem(tmp_path, text)))
    assert (found.order, found.axes, found.sizes, found.form) == (order, axes, sizes, form)
    assert found.dtype == ("float16" if "half" in inputs else "float32")


@pytest.mark.slow(5)
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("dim=-1", "dim=-2"), "not plain attention of its three inputs"),
        (("for _ in range(3)", "for _ in range(2)"), "the gate takes q, k and v"),
        (("return []", "return [torch.ones(3)]"), "more than numbers and texts"),
        (("D**0.5", "D**0.5 + torch.triu(torch.full((S, S), -torch.inf), 2)"), "not plain attention"),
        (("class Model(", "class Modell("), "has no function 'Model'"),
    ],
)
def test_a_problem_that_is_no_attention_is_refused_in_one_sentence(
    change: tuple[str, str], sentence: str, tmp_path: Path
) -> None:
    """Such a problem is input that cannot be used."""
    with pytest.raises(InputError, match=sentence):
        command.problem_of(str(problem(tmp_path, PROBLEM.replace(*change))))


def test_a_class_without_a_problem_is_refused(tmp_path: Path) -> None:
    """Without a problem the sizes are unknown."""
    one = Candidate("it", "", MODULE.format("a"), framework="torch", function="ModelNew")
    with pytest.raises(InputError, match="--task problem"):
        one.decided(tmp_path)


@pytest.mark.slow(10)
def test_inputs_of_the_candidates_own_file_are_not_read(tmp_path: Path) -> None:
    """Neither is anything else that it says about sizes; those of the problem are used."""
    code = MODULE.format("exact(a, b, c)") + "\n\ndef get_inputs():\n    raise RuntimeError\n"
    one = Candidate("it", "", code, framework="torch", function="ModelNew", problem=True)
    verdict = one.decided(tmp_path, budget=240.0)
    assert (verdict.verdict, verdict.reasons) == ("accepted", [])
    assert verdict.task.shapes == [[1, 2, 2, 48, 48, 16, 16]]
    assert verdict.task.problem == "problem.py: forward(q, k, v), each BHSD"


@pytest.mark.slow(10)
def test_a_bare_function_may_answer_a_problem(tmp_path: Path) -> None:
    """A function of any framework may answer."""
    problem(tmp_path, PROBLEM)
    one = Candidate("it", "", "def attention(q, k, v):\n    return exact(q, k, v)")
    verdict = one.decided(tmp_path, task=f"{tmp_path}/problem.py", shape=[], require=None)
    assert (verdict.verdict, verdict.task.shapes) == ("accepted", [[1, 2, 2, 48, 48, 16, 16]])


@pytest.mark.slow(20)
@pytest.mark.parametrize(("code", "verdict"), [("is_causal=True", "accepted"), ("", "rejected")])
def test_a_causal_problem_is_asked_of_causal_modules(code: str, verdict: str, tmp_path: Path) -> None:
    """Every call is causal, so a module that is not is wrong; a module has no keyword for it."""
    call = "torch.nn.functional.scaled_dot_product_attention({}, is_causal=True)"
    text = PROBLEM.replace("torch.softmax(Q @ K.transpose(-2, -1) / D**0.5, dim=-1) @ V", call.format("Q, K, V"))
    problem(tmp_path, text)
    answer = f"torch.nn.functional.scaled_dot_product_attention(a, b, c, {code})"
    one = Candidate("it", "", MODULE.format(answer), framework="torch", function="ModelNew")
    found = one.decided(tmp_path, task=f"{tmp_path}/problem.py", shape=[], require=None, budget=240.0)
    assert found.verdict == verdict
    assert found.task.problem == "problem.py: forward(q, k, v), each BHSD, causal"
    assert {reason.kind for reason in found.reasons} == ({"value"} if verdict == "rejected" else set())


@pytest.mark.slow(5)
def test_a_module_is_made_with_the_problems_inputs(tmp_path: Path) -> None:
    """A class that needs other inputs cannot be loaded."""
    code = MODULE.format("exact(a, b, c)") + "\n    def __init__(self, heads):\n        super().__init__()\n"
    one = Candidate("it", "", code, framework="torch", function="ModelNew", problem=True)
    verdict = one.decided(tmp_path)
    assert (verdict.verdict, verdict.reasons[0].kind) == ("rejected", "import")


def test_a_class_is_told_from_a_function_by_the_text(tmp_path: Path) -> None:
    """The text is not run for this."""
    file = tmp_path / "candidate.py"
    file.write_text(PRELUDES["torch"] + MODULE.format("a") + "\n\nraise SystemExit\n", encoding="utf-8")
    assert command.is_class(f"{file}:ModelNew")
    assert not command.is_class(f"{file}:exact")
