"""Simpler inputs of scripts: short ones for half-precision kernels that fail as before, and pass once mended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_conformance.conformance.cases import AnyCase, asked_cases
from attention_conformance.conformance.cases.fit import fit
from attention_conformance.conformance.diagnosis.explain import Simplifier
from attention_conformance.conformance.judging.outcomes import Failure
from attention_conformance.conformance.ledger.load import Ledger
from attention_conformance.conformance.repro import text, wrong_elements
from attention_conformance.conformance.repro.simpler import LONG, same, simpler
from attention_conformance.conformance.run_case import Judged, judge_case
from attention_conformance.conformance.targets import Target, choose
from attention_conformance.conformance.tests.repro_scripts import Ran, run
from attention_conformance.conformance.tests.tile_kernels import FIRST, TILE_KERNELS
from attention_conformance.impls.process.pool import Pool

pytestmark = pytest.mark.slow(60)

#: Functions with an unexplained failure: only right and wrong rows, and error sizes, distinguish its cause.
KEPT = ("scale", "mask", "rescale")

#: A function with two mistakes, of which drawn numbers show one: a scaled bias, and masking of scores of zero.
TWO = "bias_zeros"

#: A function whose failure is examined row by row, with its case.
SCALED = "bias"


@dataclass(frozen=True)
class Failing:
    """A function's failure, and its judge."""

    target: Target
    case: AnyCase
    judged: Judged
    judge: Callable[[AnyCase], Judged]
    simplifier: Simplifier

    def script(self, judged: Judged, case: AnyCase) -> str:
        """The script of a judged case."""
        return text(judged.result, self.target, case, wrong_elements(judged, case, self.target), {})


def failing(file: Path, name: str, case_name: str, pool: Pool) -> Failing:
    """The failure of one function of a file."""
    selection = choose([f"{file}:{name}"], ["cpu"], [], pool, probe=True)
    (target,) = selection.targets
    keywords = selection.keywords[target.implementation.name]

    def judge(one: AnyCase) -> Judged:
        return judge_case(target, one, pool, keywords, Ledger(), {}, None)

    case: AnyCase = fit(asked_cases()[case_name], target.implementation.envelope)
    return Failing(target, case, judge(case), judge, Simplifier(pool, selection.keywords, {}, None))


@dataclass(frozen=True)
class Scripts:
    """The script of each function's case, and the outcomes before and after mending."""

    texts: dict[str, str]
    wrong: dict[str, Ran]
    mended: dict[str, Ran]
    #: The outcome for TWO with only the diagnosed mistake mended.
    half: Ran
    simple: dict[str, tuple[Judged, AnyCase]]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Scripts:
    """The scripts of all functions, made once."""
    folder = tmp_path_factory.mktemp("tiles")
    file, texts, paths, simple = folder / "tile.py", dict[str, str](), dict[str, Path](), {}
    file.write_text(TILE_KERNELS, encoding="utf-8")
    pool = Pool(in_process=True)
    for name, case_name in {**FIRST, TWO: FIRST["bias"]}.items():
        one = failing(file, name, case_name, pool)
        simple[name] = one.simplifier(one.target, one.case, one.judged)
        texts[name] = one.script(*simple[name])
        paths[name] = folder / f"{name}-script.py"
        paths[name].write_text(texts[name], encoding="utf-8")
    pool.close()
    wrong = run(list(paths.values()))
    file.write_text(TILE_KERNELS.replace("MENDED = ()", 'MENDED = ("bias",)'), encoding="utf-8")
    half = run([paths[TWO]])[paths[TWO]]
    file.write_text(TILE_KERNELS.replace("WRONG = True", "WRONG = False"), encoding="utf-8")
    mended = run(list(paths.values()))
    of_wrong, of_mended = ({name: ran[path] for name, path in paths.items()} for ran in (wrong, mended))
    return Scripts(texts, of_wrong, of_mended, half, simple)


@pytest.mark.parametrize("name", [*FIRST, TWO])
def test_a_script_fails_against_the_wrong_function(scripts: Scripts, name: str) -> None:
    """A script ends with exit code 1."""
    assert scripts.wrong[name].code == 1, scripts.wrong[name].printed


@pytest.mark.parametrize("name", [*FIRST, TWO])
def test_a_script_passes_against_the_right_function(scripts: Scripts, name: str) -> None:
    """A script ends with exit code 0."""
    assert scripts.mended[name].code == 0, scripts.mended[name].printed


@pytest.mark.parametrize("name", sorted({*FIRST, TWO} - set(KEPT)))
def test_a_script_of_an_explained_failure_is_short(scripts: Scripts, name: str) -> None:
    """A script has at most 40 lines, header and check included."""
    assert scripts.texts[name].count("\n") <= LONG


@pytest.mark.parametrize("name", KEPT)
def test_inputs_stay_where_simpler_ones_show_another_failure(scripts: Scripts, name: str) -> None:
    """An unexplained failure keeps its inputs if simpler ones make other rows wrong, or much less wrong."""
    assert "simplified" not in scripts.texts[name]


def test_a_function_with_two_mistakes_gets_a_script_of_the_one_that_was_diagnosed(scripts: Scripts) -> None:
    """The script passes once the diagnosed mistake is mended, while the other one remains."""
    assert "simplified" in scripts.texts[TWO]
    assert scripts.half.code == 0, scripts.half.printed


def test_the_head_describes_the_inputs_that_are_in_the_script(scripts: Scripts) -> None:
    """Observation, input and case in the head are those of the simpler numbers, and say so."""
    judged, _ = scripts.simple["bias"]
    comment = " ".join("".join(line[1:] for line in scripts.texts["bias"].splitlines() if line.startswith("#")).split())
    assert f"Seen: {judged.result.reason} " in comment
    assert "Input: The numbers of bias, q, k, v are simplified. The case's own: " in comment
    assert f"Case {FIRST['bias']} of attention-conformance, with simpler numbers; " in comment


# The predicate that says whether a failure is still the same.


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> Failing:
    """A failure by value, of a bias that is scaled."""
    return _one(tmp_path_factory.mktemp("one"), SCALED)


def _one(folder: Path, name: str) -> Failing:
    file = folder / "tile.py"
    file.write_text(TILE_KERNELS, encoding="utf-8")
    pool = Pool(in_process=True)
    found = failing(file, name, FIRST[name], pool)
    pool.close()
    return found


def _wrong(one: Failing, rows: Any, by: float | None = None, number: float | None = None) -> Judged:
    """A judged reply with some wrong rows: their first element is ``by`` bounds off, or is ``number``."""
    assert one.judged.reply is not None
    profile, dtype = one.target.profile, one.target.dtype
    expected, bound = one.case.expected(dtype).output, one.case.bound(dtype, profile).output
    output = expected.copy()
    for row in rows:
        place = (0, 0, row, 0)
        output[place] = number if by is None else expected[place] + by * bound[place]
    results = {**one.judged.reply.results, "output": output}  # in float64: it is not rounded
    return replace(one.judged, reply=replace(one.judged.reply, results=results))


def _same(one: Failing, before: Judged, after: Judged, **fits: Any) -> bool:
    return same(before, one.case, after, one.case, one.target.dtype, fits.get("fits"))


def test_a_case_is_the_same_as_itself(scaled: Failing) -> None:
    """The predicate accepts the failures that the tests below change in one respect."""
    assert _same(scaled, scaled.judged, scaled.judged)
    assert _same(scaled, _wrong(scaled, [1, 2], 5), _wrong(scaled, [1], 4))


def test_another_clause_is_not_the_same(scaled: Failing) -> None:
    """A failure of another clause is another failure."""
    other = replace(scaled.judged, result=replace(scaled.judged.result, broken="SDPA-1"))
    assert not _same(scaled, scaled.judged, other)


def test_right_rows_before_alone_are_not_the_same(scaled: Failing) -> None:
    """If no row that was wrong is wrong again, it is another failure, even with an explanation."""
    assert not _same(scaled, _wrong(scaled, [1, 2], 5), _wrong(scaled, [3], 5), fits=lambda *_: True)


def test_a_wrong_row_more_is_not_the_same_without_an_explanation(scaled: Failing) -> None:
    """An additional wrong row is another failure, unless an explanation gives both."""
    before, after = _wrong(scaled, [1, 2], 5), _wrong(scaled, [2, 3], 5)
    assert not _same(scaled, before, after)
    assert _same(scaled, before, after, fits=lambda *_: True)


def test_what_the_explanation_does_not_give_is_not_the_same(scaled: Failing) -> None:
    """A failure that the explanation does not give is another failure, whatever else is equal."""
    assert not _same(scaled, scaled.judged, scaled.judged, fits=lambda *_: False)


def test_nan_in_the_place_of_wrong_numbers_is_not_the_same(scaled: Failing) -> None:
    """NaN instead of a wrong number, or a wrong number instead of NaN, is another failure."""
    number, nan = _wrong(scaled, [1], 5), _wrong(scaled, [1], number=np.nan)
    assert _same(scaled, nan, nan)
    assert not _same(scaled, number, nan)
    assert not _same(scaled, nan, number)


def test_less_than_two_bounds_are_not_the_same(scaled: Failing) -> None:
    """An error below two bounds is another failure, unless it was as small before."""
    assert not _same(scaled, _wrong(scaled, [1], 5), _wrong(scaled, [1], 1.5))
    assert _same(scaled, _wrong(scaled, [1], 1.5), _wrong(scaled, [1], 1.6))


def test_other_errors_in_all_rows_are_not_the_same_without_an_explanation(scaled: Failing) -> None:
    """Errors ten times as large are another failure, as nothing else shows the cause; twice as large are not."""
    every = range(scaled.case.shape.sq)
    before = _wrong(scaled, every, 5)
    assert _same(scaled, before, _wrong(scaled, every, 10))
    assert not _same(scaled, before, _wrong(scaled, every, 50))
    assert _same(scaled, before, _wrong(scaled, every, 50), fits=lambda *_: True)


def test_a_right_row_is_not_the_same_where_all_were_wrong(scaled: Failing) -> None:
    """A row that became right is another failure without an explanation."""
    every = range(scaled.case.shape.sq)
    assert not _same(scaled, _wrong(scaled, every, 5), _wrong(scaled, every[1:], 5))
    assert _same(scaled, _wrong(scaled, every, 5), _wrong(scaled, every[1:], 5), fits=lambda *_: True)


def test_other_words_are_not_the_same(scaled: Failing) -> None:
    """A failure other than by value must keep its words."""
    before, after = (
        replace(scaled.judged, result=replace(scaled.judged.result, failure=Failure.SHAPE, reason=reason))
        for reason in ("output has shape (1,)", "output has shape (2,)")
    )
    assert _same(scaled, before, before)
    assert not _same(scaled, before, after)


def test_another_result_is_not_the_same(tmp_path: Path) -> None:
    """A wrong output instead of a wrong lse is another failure."""
    one = _one(tmp_path, "lse")
    assert _same(one, one.judged, one.judged)
    reply, right = one.judged.reply, one.case.expected(one.target.dtype).lse
    assert reply is not None
    other = {"output": reply.results["output"] + 1, "lse": right}
    assert not _same(one, one.judged, replace(one.judged, reply=replace(reply, results=other)))


def test_no_time_leaves_the_inputs(scaled: Failing) -> None:
    """Without time left the inputs are unchanged."""
    found = simpler(scaled.judged, scaled.case, scaled.target.dtype, scaled.judge, lambda *_: True, seconds=0)
    assert found == (scaled.judged, scaled.case)
