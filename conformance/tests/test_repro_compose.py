"""The text of a script: its name, its head, its checks, and failures that have none."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attention_conformance.conformance.cases import all_cases, every_case
from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.repro import Element, compose, file_name, text, worst_elements, write
from attention_conformance.conformance.repro.inputs import Statements
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.calls import Reply
from attention_conformance.impls.contract import Profile
from attention_conformance.impls.select import builtin, plug_in

#: Failures about the process: a script in its own process does not show what a call changes or takes.
UNSHOWN = (Failure.STATE, Failure.MEMORY)
SHOWN = [failure for failure in Failure if failure not in (Failure.STALE, *UNSHOWN)]

ELEMENTS = (
    Element("output", (0, 1, 0, 1), 0.75, 1.70988941, 9.3912e-07),
    Element("output", (1, 0, 2, 3), np.nan, 0.0, 0.0),
)
VERSIONS = {"torch": "2.13.0", "jax": "0.10", "cuda": "13.0"}


def target(name: str = "torch-sdpa", dtype: str = "float32", device: str = "cpu") -> Target:
    """A built-in implementation, or a plug-in, in a dtype."""
    return Target(plug_in(name) if ":" in name else builtin()[name], device, dtype)


def result(failure: Failure | None = Failure.VALUE, case: str = "scale-negative", name: str = "torch-sdpa") -> Result:
    """A failure of a case."""
    return Result(
        name, "cpu", "float32", case, ("SDPA-4",), Outcome.FAILED, failure, "SDPA-4", "NaN: 160 of 160 elements wrong"
    )


def script(failure: Failure = Failure.VALUE, case: str = "scale-negative", name: str = "torch-sdpa") -> str:
    """The script of a failure, with elements if the failure is by value."""
    elements = ELEMENTS if failure is Failure.VALUE else ()
    return text(result(failure, case, name), target(name), every_case()[case], elements, VERSIONS)


def head(source: str) -> str:
    """The comment that a script begins with, without its marks."""
    lines = source[: source.index("\n\n")].splitlines()
    assert all(line.startswith("#") for line in lines)
    return "\n".join(line[2:] for line in lines)


# Names.


@pytest.mark.parametrize(
    ("name", "device", "wanted"),
    [
        ("numpy-eager", "cpu", "numpy-eager-float32-plain.py"),
        ("torch-sdpa", "cuda", "torch-sdpa-cuda-float32-plain.py"),
        ("package.kernels:attention@torch", "cpu", "package.kernels-attention-torch-float32-plain.py"),
    ],
)
def test_a_script_is_named_after_what_it_is_of(name: str, device: str, wanted: str) -> None:
    """The name has implementation, device unless it is the CPU, dtype and case, in portable characters."""
    assert file_name(target(name, device=device), all_cases()["plain"]) == wanted


def test_functions_of_one_name_in_two_folders_get_two_scripts(tmp_path: Path) -> None:
    """The path is too long for the name, and still makes the names different."""
    names = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "kernels.py").write_text("", encoding="utf-8")
        where = target(f"{tmp_path / folder / 'kernels.py'}:attention")
        names.append(file_name(where, all_cases()["plain"]))
    assert names[0] != names[1]
    assert all(name.startswith("kernels.py-attention-") for name in names)


def test_a_name_is_no_longer_than_systems_allow() -> None:
    """The name is cut, however long the names of implementation and case are."""
    case = replace(all_cases()["plain"], name="long" * 100)
    assert len(file_name(target(f"{'package.' * 40}kernels:attention"), case)) < 200


@pytest.mark.parametrize(("framework", "words"), [("torch", "torch.autograd.grad(attention("), ("jax", "jax.vjp(")])
def test_gradients_by_differentiation_differentiate_the_function(framework: str, words: str) -> None:
    """A script for gradients by autograd imports the function and differentiates it itself."""
    text = script(Failure.SHAPE, "grad-shapes", f"package.kernels:attention@{framework}+gradients")
    assert "from package.kernels import attention" in text
    assert words in text
    assert "attention_conformance" not in text


# The head.


def test_the_head_says_what_is_wrong() -> None:
    """The head has implementation, clause, observation, input, and the relevant versions."""
    comment = head(script())
    assert comment.startswith("torch-sdpa (scaled_dot_product_attention, kernel as dispatched), float32 on cpu: wrong")
    assert "Clause:   SDPA-4 · Any scale: `scale` is any real number" in comment
    assert "Seen:     NaN: 160 of 160 elements wrong" in comment
    assert "scale=-0.5" in comment
    assert f"Versions: torch 2.13.0, cuda 13.0, numpy {np.__version__}, Python 3." in comment
    assert "jax" not in comment
    assert "Case scale-negative of attention-conformance" in comment


@pytest.mark.parametrize("failure", SHOWN)
def test_the_head_says_in_which_way(failure: Failure) -> None:
    """Each kind of failure has its own words, and the head explains the exit code."""
    others = {head(script(each)).splitlines()[0] for each in SHOWN if each is not failure}
    assert head(script(failure)).splitlines()[0] not in others
    assert "0 once it is right" in " ".join(head(script(failure)).split())


# The rest.


def test_values_are_checked_with_their_bounds() -> None:
    """A check has the exact value, a bound in few digits, and NaN where NaN is expected."""
    source = script()
    assert "    (0, 1, 0, 1): (0.75, 9.39e-07)," in source
    assert "    (1, 0, 2, 3): (np.nan, 0)," in source
    assert "or np.isnan(got) and np.isnan(value)" in source


@pytest.mark.parametrize(("got", "written"), [(1.0, "0.123)"), (0.1231, "0.12319)"), (0.1234, "0.123)")])
def test_a_bound_keeps_its_digits_where_they_decide(got: float, written: str) -> None:
    """A bound has three digits unless an error lies between the bound and its rounding."""
    elements = (Element("output", (0, 0, 0, 0), 0.0, got, 0.12319),)
    source = text(result(), target(), all_cases()["scale-negative"], elements, {})
    assert f"(0, 0, 0, 0): (0.0, {written}" in source


def test_an_infinite_result_is_right_where_the_bound_reaches_beyond_the_dtype() -> None:
    """The check accepts an infinity of the right sign, as the suite does."""
    element = replace(ELEMENTS[0], may_overflow=True)
    source = text(result(), target(), all_cases()["scale-negative"], (element,), {})
    assert "or got == np.copysign(np.inf, value)" in source
    assert "copysign" not in script()


def test_a_call_before_may_fail() -> None:
    """The outcome of the earlier call is ignored; only its effects matter."""
    source = script(Failure.SHAPE, "repeat-after-other-shape")
    call = "output = scaled_dot_product_attention(q, k, v)"
    assert source.index("with contextlib.suppress(Exception):") < source.rindex(call)
    assert source.count("scaled_dot_product_attention(q, k, v)") == 2
    assert "def " not in source


def test_a_call_before_that_is_not_expressible_is_left_out() -> None:
    """An earlier call that the implementation cannot express is left out, as in the suite: ort-gqa has no mask."""
    case = replace(all_cases()["repeat-after-mask"], shape=all_cases()["causal-square"].shape)
    source = text(result(Failure.SHAPE, name="ort-gqa"), target("ort-gqa"), case, (), {})
    assert "suppress" not in source
    compile(source, "script", "exec")


def test_a_maker_named_like_a_function_of_the_implementation_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers are then written as bytes, as a script cannot hold two functions with one name."""
    given = {
        "tiles": Statements(("q, k, v = attention()",), sources=("attention_conformance.impls.numpy.tiled:attention",))
    }
    monkeypatch.setattr(compose, "statements", lambda case, dtype: given[case.name])
    source = text(result(Failure.SHAPE), target("numpy-eager"), all_cases()["tiles"], (), {})
    assert "b64decode" in source
    assert source.count("def attention(") == 1


CAUSAL = {"sdpa": "causal-square", "mha": "mha-causal", "sublayer": "sublayer-causal"}


@pytest.mark.slow(4)
@pytest.mark.parametrize("name", sorted(name for name, each in builtin().items() if each.operator in CAUSAL))
def test_scripts_are_formatted(name: str, tmp_path: Path) -> None:
    """Scripts are formatted as by a formatter, so that they can be pasted."""
    pytest.importorskip("ruff")
    pytest.importorskip("onnx" if "onnx" in name or "ort" in name else "numpy")
    for failure in SHOWN:
        path = tmp_path / f"{failure.name}.py"
        path.write_text(script(failure, CAUSAL[builtin()[name].operator], name), encoding="utf-8")
    command = [sys.executable, "-m", "ruff", "format", "--no-cache", "--isolated", "--line-length=120", "--check"]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_script_of_a_small_case_is_short() -> None:
    """A script for a call of a library has at most forty lines, head and check included."""
    assert len(script().splitlines()) <= 40
    assert len(script(case="causal-more-keys").splitlines()) <= 40


def test_a_script_is_written_into_a_new_folder(tmp_path: Path) -> None:
    """A script is written as UTF-8, under its name."""
    case = all_cases()["scale-negative"]
    path = write(result(), target(), case, ELEMENTS, VERSIONS, tmp_path / "new" / "scripts")
    assert path == tmp_path / "new" / "scripts" / "torch-sdpa-float32-scale-negative.py"
    assert path.read_text(encoding="utf-8") == script()


@pytest.mark.parametrize(
    ("failure", "elements"),
    [*((each, ()) for each in (None, Failure.STALE, *UNSHOWN, Failure.VALUE)), (Failure.SHAPE, ELEMENTS)],
)
def test_what_shows_nothing_has_no_script(failure: Failure | None, elements: tuple[Element, ...]) -> None:
    """No script: a pass, a stale record, changed state, memory, values without elements, elements without values."""
    with pytest.raises(ValueError, match="script"):
        text(result(failure), target(), all_cases()["scale-negative"], elements, {})


# Elements.


def worst(case: str, dtype: str = "float32", *, wrong: bool = True, **firsts: float) -> tuple[Element, ...]:
    """The worst elements of results that are exact except for the first element of the named ones."""
    given = all_cases()[case]
    results = {name: getattr(given.expected(dtype), name).copy() for name in given.results()}
    for name, first in firsts.items():
        results[name].flat[0] = first
    return worst_elements(Reply("returned", results), given, dtype, Profile.WIDE, wrong=wrong)


def test_the_worst_elements_are_the_wrong_ones() -> None:
    """An element has its expected value, its actual value and its bound."""
    (element,) = worst("plain", output=9.0)
    assert (element.result, element.index, element.got) == ("output", (0, 0, 0, 0), 9.0)
    assert element.expected == all_cases()["plain"].expected("float32").output[0, 0, 0, 0]
    assert 0 < element.bound < 1e-3


def test_a_wrong_result_behind_a_right_one_is_found() -> None:
    """A wrong lse is found where the output is right."""
    assert [element.result for element in worst("lse", lse=1.0)] == ["lse"]


def test_nothing_is_wrong_with_exact_results() -> None:
    """Exact results have no wrong element, but the three worst can be requested all the same."""
    assert worst("plain") == ()
    assert len(worst("plain", wrong=False)) == 3


def test_an_expected_infinity_has_no_bound() -> None:
    """The lse of a fully masked row must be −inf, and a large negative number is wrong."""
    (element,) = [each for each in worst("empty-keys-lse", lse=-1e30) if each.got == -1e30]
    assert (element.expected, element.bound) == (-np.inf, 0.0)
