"""Simpler inputs of scripts: short ones for kernels of half precision that fail as before, and pass once mended."""

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

#: Functions whose failure nothing explains: right and wrong rows, and how wrong they are, tell their cause from others.
KEPT = ("scale", "mask", "rescale")

#: Two mistakes, one of which drawn numbers show: a bias that is scaled, beside scores of zero that are masked.
TWO = "bias_zeros"

#: A function whose failure is looked at, row by row, and its case.
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
        """The script of a result."""
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
    """The script of each function's case, and what came of it, before and after mending."""

    texts: dict[str, str]
    wrong: dict[str, Ran]
    mended: dict[str, Ran]
    #: With the mistake alone mended that was diagnosed, of TWO.
    half: Ran
    simple: dict[str, tuple[Judged, AnyCase]]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Scripts:
    """Of all functions, once."""
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
    """Exit code 1."""
    assert scripts.wrong[name].code == 1, scripts.wrong[name].printed


@pytest.mark.parametrize("name", [*FIRST, TWO])
def test_a_script_passes_against_the_right_function(scripts: Scripts, name: str) -> None:
    """Exit code 0."""
    assert scripts.mended[name].code == 0, scripts.mended[name].printed


@pytest.mark.parametrize("name", sorted({*FIRST, TWO} - set(KEPT)))
def test_a_script_of_an_explained_failure_is_short(scripts: Scripts, name: str) -> None:
    """At most 40 lines, header and check included."""
    assert scripts.texts[name].count("\n") <= LONG


@pytest.mark.parametrize("name", KEPT)
def test_inputs_stay_where_simpler_ones_show_another_failure(scripts: Scripts, name: str) -> None:
    """Nothing explains it, and with numbers like drawn ones other rows are wrong, or by much less."""
    assert "simplified" not in scripts.texts[name]


def test_a_function_with_two_mistakes_gets_a_script_of_the_one_that_was_diagnosed(scripts: Scripts) -> None:
    """With that one mended, and the other one still there, the script passes."""
    assert "simplified" in scripts.texts[TWO]
    assert scripts.half.code == 0, scripts.half.printed


def test_the_head_describes_the_inputs_that_are_in_the_script(scripts: Scripts) -> None:
    """What was seen, on which input, of which case: all three are of the simpler numbers, and say so."""
    judged, _ = scripts.simple["bias"]
    comment = " ".join("".join(line[1:] for line in scripts.texts["bias"].splitlines() if line.startswith("#")).split())
    assert f"Seen: {judged.result.reason} " in comment
    assert "Input: The numbers of bias, q, k, v are simplified. The case's own: " in comment
    assert f"Case {FIRST['bias']} of attention-conformance, with simpler numbers; " in comment


# The predicate.


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
    """A judged reply that is right but at some rows: so many bounds off in their first element, or a number there."""
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
    """What the predicate rejects below it takes without the difference."""
    assert _same(scaled, scaled.judged, scaled.judged)
    assert _same(scaled, _wrong(scaled, [1, 2], 5), _wrong(scaled, [1], 4))


def test_another_clause_is_not_the_same(scaled: Failing) -> None:
    """The result names another one."""
    other = replace(scaled.judged, result=replace(scaled.judged.result, broken="SDPA-1"))
    assert not _same(scaled, scaled.judged, other)


def test_right_rows_before_alone_are_not_the_same(scaled: Failing) -> None:
    """No row that was wrong is wrong again, whatever explains it."""
    assert not _same(scaled, _wrong(scaled, [1, 2], 5), _wrong(scaled, [3], 5), fits=lambda *_: True)


def test_a_wrong_row_more_is_not_the_same_without_an_explanation(scaled: Failing) -> None:
    """With one it is."""
    before, after = _wrong(scaled, [1, 2], 5), _wrong(scaled, [2, 3], 5)
    assert not _same(scaled, before, after)
    assert _same(scaled, before, after, fits=lambda *_: True)


def test_what_the_explanation_does_not_give_is_not_the_same(scaled: Failing) -> None:
    """Whatever else is alike."""
    assert not _same(scaled, scaled.judged, scaled.judged, fits=lambda *_: False)


def test_nan_in_the_place_of_wrong_numbers_is_not_the_same(scaled: Failing) -> None:
    """And a wrong number in the place of NaN is not either."""
    number, nan = _wrong(scaled, [1], 5), _wrong(scaled, [1], number=np.nan)
    assert _same(scaled, nan, nan)
    assert not _same(scaled, number, nan)
    assert not _same(scaled, nan, number)


def test_less_than_two_bounds_are_not_the_same(scaled: Failing) -> None:
    """Unless it was as near before."""
    assert not _same(scaled, _wrong(scaled, [1], 5), _wrong(scaled, [1], 1.5))
    assert _same(scaled, _wrong(scaled, [1], 1.5), _wrong(scaled, [1], 1.6))


def test_other_errors_in_all_rows_are_not_the_same_without_an_explanation(scaled: Failing) -> None:
    """Nothing else tells causes apart there; twice as large they are about the same."""
    every = range(scaled.case.shape.sq)
    before = _wrong(scaled, every, 5)
    assert _same(scaled, before, _wrong(scaled, every, 10))
    assert not _same(scaled, before, _wrong(scaled, every, 50))
    assert _same(scaled, before, _wrong(scaled, every, 50), fits=lambda *_: True)


def test_a_right_row_is_not_the_same_where_all_were_wrong(scaled: Failing) -> None:
    """Without an explanation."""
    every = range(scaled.case.shape.sq)
    assert not _same(scaled, _wrong(scaled, every, 5), _wrong(scaled, every[1:], 5))
    assert _same(scaled, _wrong(scaled, every, 5), _wrong(scaled, every[1:], 5), fits=lambda *_: True)


def test_other_words_are_not_the_same(scaled: Failing) -> None:
    """Of a failure that is none of values."""
    before, after = (
        replace(scaled.judged, result=replace(scaled.judged.result, failure=Failure.SHAPE, reason=reason))
        for reason in ("output has shape (1,)", "output has shape (2,)")
    )
    assert _same(scaled, before, before)
    assert not _same(scaled, before, after)


def test_another_result_is_not_the_same(tmp_path: Path) -> None:
    """Wrong output where lse was wrong before."""
    one = _one(tmp_path, "lse")
    assert _same(one, one.judged, one.judged)
    reply, right = one.judged.reply, one.case.expected(one.target.dtype).lse
    assert reply is not None
    other = {"output": reply.results["output"] + 1, "lse": right}
    assert not _same(one, one.judged, replace(one.judged, reply=replace(reply, results=other)))


def test_no_time_leaves_the_inputs(scaled: Failing) -> None:
    """The limit of a script."""
    found = simpler(scaled.judged, scaled.case, scaled.target.dtype, scaled.judge, lambda *_: True, seconds=0)
    assert found == (scaled.judged, scaled.case)
