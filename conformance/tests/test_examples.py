"""The hand-computed examples follow from their own inputs, and their file is read strictly."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest

from attention_conformance.conformance.spec import examples as examples_page
from attention_conformance.conformance.spec.clauses import clauses
from attention_conformance.conformance.tests.exact import Exact
from attention_conformance.conformance.tests.hand_examples import (
    OPTIONS,
    RESULTS,
    STEPS,
    UNIT,
    Example,
    MalformedExample,
    Table,
    examples,
    load,
)
from attention_conformance.conformance.tests.pencil import mistakes

EXAMPLES = pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)

ONE_KEY = """
[[examples]]
name = "one"
clauses = ["SDPA-14"]
shows = "One key."
inputs.q = [[[[1]]]]
inputs.k = [[[[2]]]]
inputs.v = [[[[3]]]]
options.scale = "ln 2"
steps.products = [[[[2]]]]
steps.scores = [[[["2 ln 2"]]]]
steps.powers = [[[[4]]]]
steps.totals = [[[4]]]
results.output = [[[[3]]]]
results.lse = [[["2 ln 2"]]]
"""


@EXAMPLES
def test_steps_follow_from_the_inputs(example: Example) -> None:
    """Every step and result of the example follows from the steps before it, in exact arithmetic."""
    assert mistakes(example) == []


@pytest.mark.slow(2)
@EXAMPLES
def test_every_number_is_checked(example: Example) -> None:
    """Any one changed number of the steps or results is noticed when the example is recomputed."""
    for where, changed in _variations(example):
        assert mistakes(changed), f"nobody noticed a changed {where}"


@EXAMPLES
def test_clauses_exist(example: Example) -> None:
    """An example names only clauses of the spec."""
    assert set(example.clauses) <= set(clauses())


@EXAMPLES
def test_sizes_fit_the_limit(example: Example) -> None:
    """The example is no larger than the derivation of its float64 limit assumes."""
    assert example.q.shape[3] <= 4
    assert example.k.shape[2] <= 6


def test_every_option_and_step_has_an_example() -> None:
    """Together the examples use every option of sdpa and every kind of step and result."""
    assert {name for example in examples() for name in example.options} == set(OPTIONS)
    assert {name for example in examples() for name in example.steps} == set(STEPS)
    assert {name for example in examples() for name in example.results} == set(RESULTS)


@pytest.mark.documents
def test_page_is_up_to_date() -> None:
    """EXAMPLES.md equals what the data gives; run ``attention-conformance pages`` after a change."""
    assert examples_page.PAGE.read_text(encoding="utf-8") == examples_page.render()


def test_exact_numbers_become_the_nearest_float() -> None:
    """Fractions and small multiples of ln 2 are converted to float64 within one unit roundoff."""
    (example,) = load(ONE_KEY)
    assert example.options["scale"] == np.log(2)
    assert abs(example.results["lse"].values[0, 0, 0] - 2 * np.log(2)) <= 2 * UNIT


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "one"', 'name = "o ne"', "needs a name"),
        ('clauses = ["SDPA-14"]', "clauses = []", "at least one clause"),
        ('"One key."', '"One key"', "must be a sentence"),
        ("inputs.v = [[[[3]]]]\n", "", "one: inputs lacks v"),
        ("inputs.k =", "inputs.kk =", "one: inputs lacks k"),
        ("inputs.q = [[[[1]]]]", "inputs.q = [[[1]]]", "q has 3 axes, expected 4"),
        ("inputs.q = [[[[1]]]]", "inputs.q = [[[[1], [1, 2]]]]", "q has lists of different lengths"),
        ("inputs.q = [[[[1]]]]", 'inputs.q = [[[["1e3"]]]]', "q: '1e3' is not a number"),
        ("inputs.q = [[[[1]]]]", "inputs.q = [[[[1.5]]]]", "q: expected an integer or a text"),
        ("inputs.q = [[[[1]]]]", "inputs.q = [[[[true]]]]", "q: expected an integer or a text"),
        ("inputs.q = [[[[1]]]]", "inputs.q = { shape = [1, 1, 1, 1] }", "without elements"),
        ("options.scale", "options.skale", "one: options has unknown fields: skale"),
        ('options.scale = "ln 2"', "options.mask = [1]", "option mask cannot be"),
        ('options.scale = "ln 2"', "options.mask = [[true], [true, false]]", "option mask cannot be"),
        ('options.scale = "ln 2"', "options.is_causal = 1", "option is_causal cannot be"),
        ('options.scale = "ln 2"', 'options.window = [1, "closed"]', "option window cannot be"),
        ('options.scale = "ln 2"', "options.window = 1", "option window cannot be"),
        ('options.scale = "ln 2"', "options.causal_offset = 1.5", "option causal_offset cannot be"),
        ('options.scale = "ln 2"', "options.scale = [1]", "scale has 1 axes, expected 0"),
        ("steps.totals = [[[4]]]\n", "", "one: steps lacks totals"),
        ("results.output = [[[[3]]]]", "results.output = [[[[3, 3]]]]", r"output has shape \(1, 1, 1, 2\), expected"),
        ("results.lse", "results.log", "one: results has unknown fields: log"),
        ("[[examples]]", "[[example]]", r"expected \[\[examples\]\]"),
        ('name = "one"', "name =", "not TOML"),
        (ONE_KEY, ONE_KEY + ONE_KEY, "one: this name stands twice"),
        (ONE_KEY, ONE_KEY + "rejected = [3]", "one: rejected must be a table"),
        (ONE_KEY, ONE_KEY + 'rejected = [{result = "x", value = 1, because = ""}]', "rejected has result 'x'"),
    ],
)
def test_malformed_data_is_refused(old: str, new: str, message: str) -> None:
    """A mistake in the file is refused with the name of the example and of the field."""
    assert old in ONE_KEY
    with pytest.raises(MalformedExample, match=message):
        load(ONE_KEY.replace(old, new))


def _variations(example: Example) -> Iterator[tuple[str, Example]]:
    """The example with one number changed, for each number of each table."""
    for name, table in example.steps.items():
        for index in np.ndindex(table.shape):
            steps = {**example.steps, name: _changed(table, index)}
            yield f"{name}{list(index)}", dataclasses.replace(example, steps=steps)
    for name, table in example.results.items():
        for index in np.ndindex(table.shape):
            results = {**example.results, name: _changed(table, index)}
            yield f"{name}{list(index)}", dataclasses.replace(example, results=results)


def _changed(table: Table, index: tuple[int, ...]) -> Table:
    """The number replaced by one that is wrong by more than its rounding."""
    number: Exact = table.exact[index]
    wrong = Exact(number.coefficient + 1, number.logs)
    arrays = {field.name: getattr(table, field.name).copy() for field in dataclasses.fields(table)}
    arrays["exact"][index], arrays["values"][index], arrays["texts"][index] = wrong, float(wrong), str(wrong)
    return Table(**arrays)
