"""The inputs in a script are the case's, bit for bit, however they are written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attention_conformance.conformance.cases import AnyCase, Case, all_cases, every_case
from attention_conformance.conformance.cases.data import LONG, SMALL, Rng, Shape, normal, peak, random_bias, random_mask
from attention_conformance.conformance.properties.problem import Problem, RandomBias, RandomMask
from attention_conformance.conformance.repro import inputs
from attention_conformance.conformance.repro.inline import Inliner, import_lines
from attention_conformance.conformance.repro.inputs import (
    NoRecipe,
    Statements,
    arrays,
    carried,
    expression,
    packed,
    seeded,
    statements,
)
from attention_conformance.conformance.spec.inputs import Inputs
from attention_conformance.impls.script import WIDTH

#: Limit beyond which making the inputs takes too long for this test.
NUMBERS = 100_000


def source(written: Statements) -> str:
    """The statements as a complete script."""
    inliner = Inliner()
    defined = inputs.definitions(written, inliner)
    return "\n".join([import_lines(written.imports | inliner.imports), defined, *written.lines])


def made(written: Statements) -> dict[str, Any]:
    """The arrays that the statements make."""
    names: dict[str, Any] = {"__name__": __name__}
    exec(source(written), names)  # noqa: S102  (the text under test)
    return names


def assert_makes(written: Statements, case: AnyCase, dtype: str) -> None:
    """Check every array, with the same bits after rounding to bfloat16."""
    names = made(written)
    for name, array in arrays(case, dtype).items():
        assert names[name].dtype == carried(array).dtype
        assert names[name].shape == array.shape
        assert names[name].astype(array.dtype).tobytes() == array.tobytes()


def is_seeded(written: Statements) -> bool:
    """Whether random numbers are drawn."""
    return any("default_rng" in line for line in written.lines)


def is_packed(written: Statements) -> bool:
    """Whether the numbers are compressed bytes."""
    return ("base64", "", "") in written.imports


#: Cases of layers in every form, with many arrays, and with an edit.
LAYERS = (
    "mha-accuracy-wide",
    "mha-sequence-first-cross",
    "mha-unbatched",
    "sublayer-lengths",
    "sublayer-invalid-gamma",
)
CASES = [case for case in every_case().values() if max(case.shape.sq, case.shape.sk) * case.shape.d < NUMBERS]

#: Size of a case whose script runs in less than a second.
QUICKLY = 50_000


@pytest.mark.parametrize(
    "dtypes", [slice(1), pytest.param(slice(1, None), marks=pytest.mark.slow)], ids=["first dtype", "other dtypes"]
)
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.slow(15) if case.size[0] > QUICKLY else ()) for case in CASES],
    ids=[case.name for case in CASES],
)
def test_every_case_is_written_as_numbers_or_by_its_seed(case: AnyCase, dtypes: slice) -> None:
    """Every case and dtype is readable, and none is written as bytes."""
    for dtype in case.dtypes[dtypes]:
        written = statements(case, dtype)
        assert not is_packed(written)
        assert max(len(line) for lines in written.lines for line in lines.splitlines()) <= WIDTH
        assert_makes(written, case, dtype)


def test_few_numbers_are_written_out() -> None:
    """Few numbers are written out, so that they are readable and need no random generator."""
    case = Case("few", ("SDPA-1",), "Few.", Shape(b=1, hq=1, hkv=1, sq=2, sk=2, d=4, dv=4))
    assert not is_seeded(statements(case, "float32"))


def test_equal_numbers_are_written_once() -> None:
    """Equal numbers are written once, however many there are."""
    case = Case(
        "equal", ("SDPA-1",), "Equal.", LONG, lambda rng, s: tuple(np.full_like(a, 2.0) for a in normal(1.0)(rng, s))
    )
    written = statements(case, "float16")
    assert written.lines[0] == "q = np.full((1, 2, 5, 16), 2, np.float16)"
    assert_makes(written, case, "float16")


@pytest.mark.parametrize("name", ["decode-sequence", "masked-large-causal", "masked-nan-keys", "masked-nan-lengths"])
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_a_sequence_and_numbers_at_some_keys_take_a_few_lines(name: str, dtype: str) -> None:
    """Numbers are drawn by a seed and a number at some keys replaces them, without a function or a long list."""
    case = all_cases()[name]
    written = statements(case, dtype)
    assert is_seeded(written)
    assert not written.sources
    assert sum(line.count("\n") + 1 for line in written.lines) <= inputs.SHORT
    assert_makes(written, case, dtype)


def test_different_numbers_at_some_keys_are_no_number() -> None:
    """Different numbers at some keys have no short form."""

    def two_numbers(rng: Rng, s: Shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        q, k, v = normal(1.0)(rng, s)
        k[:, :, -2:] = np.array([3.0, 4.0])[:, None]
        return q, k, v

    case = Case("masked-two", ("SDPA-1",), "Two numbers.", replace(SMALL, sk=7), two_numbers)
    assert inputs.short(case, "float32") is None


def test_numbers_that_repeat_are_drawn_in_memory_of_their_own() -> None:
    """A maker may give views with strides of 0; a script's arrays are row-major."""
    case = Case("view", ("SDPA-1",), "A view.", LONG, _views)
    written = seeded(case, "float32")
    assert written is not None
    assert_makes(written, case, "float32")
    assert made(written)["q"].flags.c_contiguous


def _views(rng: Rng, s: Shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    q, k, v = normal(1.0)(rng, s)
    return np.broadcast_to(q[:, :1, :1], q.shape), k, v


def test_many_numbers_are_drawn() -> None:
    """Many numbers are drawn from the case's own seed, by the functions that made them."""
    written = seeded(all_cases()["tiles"], "float32")
    assert written is not None
    assert is_seeded(written)
    assert "attention_conformance.conformance.cases.data:normal" in written.sources


@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_drawn_too(name: str) -> None:
    """Inputs, weights and biases are drawn in the form of the call, in every dtype."""
    for dtype in every_case()[name].dtypes:
        written = seeded(every_case()[name], dtype)
        assert written is not None
        assert max(len(line) for lines in written.lines for line in lines.splitlines()) <= WIDTH
        assert_makes(written, every_case()[name], dtype)


def test_a_shape_of_another_kind_is_not_guessed() -> None:
    """A shape of an unknown class has no recipe, so the numbers are written in another way."""
    shape: Any = SimpleNamespace(**asdict(SMALL), scores=SMALL.scores, elements=SMALL.elements)
    case = replace(all_cases()["plain"], shape=shape)
    assert seeded(case, "float32") is None
    assert statements(case, "float32").sources == ()


def test_numbers_without_a_recipe_are_written_out_up_to_the_limit() -> None:
    """Numbers without a recipe are written out, however many lines they take."""
    values = normal(1.0)(np.random.default_rng(5), SMALL)
    case = Case("fixed", ("SDPA-1",), "Fixed.", SMALL, lambda rng, s: values)
    written = statements(case, "float32")
    assert not is_seeded(written)
    assert not is_packed(written)
    assert_makes(written, case, "float32")


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_what_cannot_be_written_otherwise_is_packed(dtype: str) -> None:
    """Many numbers without a recipe are written as compressed bytes, and can be modified like any other."""
    values = normal(1.0)(np.random.default_rng(5), LONG)
    case = Case("fixed-long", ("SDPA-1",), "Fixed.", LONG, lambda rng, s: values)
    written = statements(case, dtype)
    assert is_packed(written)
    assert_makes(written, case, dtype)
    assert made(written)["q"].flags.writeable


def test_a_maker_that_depends_on_what_it_was_made_with_is_tried() -> None:
    """A recipe that draws other numbers is refused: this closure changes the argument that it holds."""

    def halved(spread: float) -> Callable:
        spread = spread / 2
        return lambda rng, s: normal(spread)(rng, s)

    case = Case("halved", ("SDPA-1",), "Halved.", LONG, halved(2.0))
    assert seeded(case, "float32") is None


@pytest.mark.parametrize(
    "value", [np.nan, np.inf, -np.inf, -0.0, 5e-324, 1e-45, 3.4028235e38, 0.1, 1 / 3, 65504.0, 2.0**-24]
)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_every_number_is_written_exactly(value: float, dtype: str) -> None:
    """The shortest digits give the same number in its dtype, special numbers included."""

    def data(rng: Rng, s: Shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        q, k, v = normal(1.0)(rng, s)
        q[..., 1] = value
        return q, k, v

    shape = Shape(b=1, hq=1, hkv=1, sq=2, sk=2, d=4, dv=4)
    with np.errstate(all="ignore"):
        case = Case(f"number {value}", ("SDPA-1",), "One number.", shape, data)
        written = statements(case, dtype)
        assert not is_seeded(written)
        assert_makes(written, case, dtype)


def test_another_random_generator_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A NumPy that draws other numbers ends the script with exit code 2, which does not blame the implementation."""
    written = statements(all_cases()["tiles"], "float32")
    monkeypatch.setattr(np.random, "default_rng", lambda seed: np.random.Generator(np.random.MT19937(seed)))
    with pytest.raises(SystemExit) as caught:
        made(written)
    assert caught.value.code == 2


def test_a_random_problem_is_written_by_its_seed() -> None:
    """A problem found by a property test becomes a short script."""
    problem = Problem(
        "found",
        LONG,
        spread=2.0,
        offset=3.0,
        outlier=5.0,
        mask=RandomMask(0.7, (1, 1, None, None)),
        bias=RandomBias(2.0),
        kv_lengths=(100,),
        causal_offset=(3,),
        window=(5, None),
    )
    for dtype in ("float32", "bfloat16"):
        written = statements(problem.case(), dtype)
        assert is_seeded(written)
        assert_makes(written, problem.case(), dtype)


def test_an_edit_is_part_of_the_recipe() -> None:
    """An edit of the module is written by its name, a lambda by its body."""
    named, in_place = all_cases()["nan-query"], all_cases()["invalid-lengths"]
    layer = seeded(every_case()["mha-invalid-widths"], "float32")
    assert layer is not None
    assert "x = replace(x, w_q=x.w_q[:7])" in layer.lines
    recipes = [seeded(case, "float32") for case in (named, in_place)]
    assert recipes[0] is not None
    assert "x = _nan_query(x)" in recipes[0].lines
    assert recipes[1] is not None
    assert "x = replace(x, v=x.v[:, :, :-1])" in recipes[1].lines


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("tiles", "q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in ("),
        ("causal-more-keys", "v = sum(np.ix_([0, 0.125], [0, 0.25], range(0, 7), [1, 0.5] * 4)).astype(np.float32)"),
        ("causal-tiles", "% 61 - 1, [1, 0.5] * "),
        ("nan-query", "np.nan"),
        ("empty-one-query", "mask = np.full((2, 2, 1, 7), 0, bool)"),
        ("mha-plain", "((rng.standard_normal((8, 8)) / np.sqrt(8)).astype(np.float32) for _ in range(4))"),
        ("sublayer-post-norm", "gamma = (1.0 + 0.25 * rng.standard_normal((8,))).astype(np.float32)"),
        ("latent-plain", "w_uv = (rng.standard_normal((3, 12, 6)) / np.sqrt(12)).astype(np.float32)"),
        ("merge-two", "lses = (2.0 + 2.0 * rng.standard_normal((2, 2, 2, 5))).astype(np.float32)"),
        ("combined-mask-causal", 'mask = np.array([[c == "1" for c in row] for row in rows.split()])'),
    ],
)
def test_inputs_are_short_without_a_function(name: str, line: str) -> None:
    """Short forms are draws, sums of a row for each axis, rows of 0 and 1, and single numbers that are replaced."""
    written = statements(every_case()[name], "float32")
    assert written.sources == ()
    assert line in "\n".join(written.lines)
    assert_makes(written, every_case()[name], "float32")


@pytest.mark.parametrize("name", ["merge-two", "merge-grad-lse", "mha-plain", "latent-plain"])
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_other_operators_are_short_in_every_dtype(name: str, dtype: str) -> None:
    """Inputs are short in every dtype; log-sum-exps stay float32 next to outputs in half precision."""
    written = statements(every_case()[name], dtype)
    assert written.sources == ()
    assert_makes(written, every_case()[name], dtype)


def test_numbers_by_another_rule_are_not_taken_for_a_draw() -> None:
    """The third power of a draw, which no factor and offset gives, has no short form."""
    case = Case("cubed", ("SDPA-1",), "Cubed.", LONG, lambda rng, s: tuple(a**3 for a in normal(1.0)(rng, s)))
    assert inputs.short(case, "float32") is None


def _untouched(x: Inputs) -> Inputs:
    return replace(x, q=x.q)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (normal(2.0), "normal(2.0)"),
        (peak(-1), "peak(-1)"),
        (peak(0, size=3.0), "peak(0, size=3.0)"),
        (random_mask(0.5, (None, 1)), "random_mask(0.5, shape=(None, 1))"),
        (random_bias(), "random_bias()"),
        ((1, (2.0,), None, "x"), '(1, (2.0,), None, "x")'),
        (slice(2, 5), "slice(2, 5)"),
        (slice(None, None, 2), "slice(None, None, 2)"),
        (-np.inf, "-np.inf"),
        (np.nan, "np.nan"),
        (_untouched, "_untouched"),
    ],
)
def test_a_value_is_written_as_what_made_it(value: Any, text: str) -> None:
    """A closure is written as the call that made it, without default arguments."""
    assert expression(value, []) == text


@pytest.mark.parametrize("value", [np.zeros(3), {"a": 1}, object(), Problem("x").case])
def test_a_value_that_is_no_expression_is_refused(value: Any) -> None:
    """A value without an expression is refused, and the inputs are written in another way."""
    with pytest.raises(NoRecipe):
        expression(value, [])


def test_packed_and_seeded_agree() -> None:
    """Packed and seeded statements give the same inputs."""
    case = all_cases()["tiles"]
    recipe = seeded(case, "float16")
    assert recipe is not None
    first, second = made(recipe), made(packed(case, "float16"))
    assert all(first[name].tobytes() == second[name].tobytes() for name in ("q", "k", "v"))
