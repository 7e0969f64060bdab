"""Simpler inputs of scripts: short ones for kernels of half precision that fail as before, and pass once mended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from attention_conformance.conformance.cases import AnyCase, asked_cases
from attention_conformance.conformance.cases.fit import fit
from attention_conformance.conformance.ledger.load import Ledger
from attention_conformance.conformance.repro import text, wrong_elements
from attention_conformance.conformance.repro.simpler import same, simpler
from attention_conformance.conformance.run_case import Judged, judge_case
from attention_conformance.conformance.targets import choose
from attention_conformance.conformance.tests.repro_scripts import Ran, run
from attention_conformance.conformance.tests.tile_kernels import FIRST, TILE_KERNELS
from attention_conformance.impls.process.pool import Pool

pytestmark = pytest.mark.slow(20)

LINES = 40

#: Texts, and what came of them before and after mending, by function.
Scripts = tuple[dict[str, str], dict[str, Ran], dict[str, Ran]]


def scripted(folder: Path) -> Scripts:
    """The script of each function's case, what came of it, and what came of it once the function was mended."""
    file, texts, paths = folder / "tile.py", dict[str, str](), dict[str, Path]()
    file.write_text(TILE_KERNELS, encoding="utf-8")
    pool = Pool(in_process=True)
    for name, case_name in FIRST.items():
        selection = choose([f"{file}:{name}"], ["cpu"], [], pool, probe=True)
        (target,) = selection.targets
        keywords = selection.keywords[target.implementation.name]

        def judge(one: AnyCase, target=target, keywords=keywords) -> Judged:  # type: ignore[no-untyped-def]
            return judge_case(target, one, pool, keywords, Ledger(), {}, None)

        case: AnyCase = fit(asked_cases()[case_name], target.implementation.envelope)
        judged, case = simpler(judge(case), case, target.dtype, judge)
        texts[name] = text(judged.result, target, case, wrong_elements(judged, case, target), {})
        paths[name] = folder / f"{name}-script.py"
        paths[name].write_text(texts[name], encoding="utf-8")
    pool.close()
    wrong = run(list(paths.values()))
    file.write_text(TILE_KERNELS.replace("WRONG = True", "WRONG = False"), encoding="utf-8")
    mended = run(list(paths.values()))
    return texts, {n: wrong[p] for n, p in paths.items()}, {n: mended[p] for n, p in paths.items()}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Scripts:
    """Of all functions, once."""
    return scripted(tmp_path_factory.mktemp("tiles"))


@pytest.mark.parametrize("name", FIRST)
def test_a_script_fails_against_the_wrong_function(scripts: Scripts, name: str) -> None:
    """Exit code 1."""
    assert scripts[1][name].code == 1, scripts[1][name].printed


@pytest.mark.parametrize("name", FIRST)
def test_a_script_passes_against_the_right_function(scripts: Scripts, name: str) -> None:
    """Exit code 0."""
    assert scripts[2][name].code == 0, scripts[2][name].printed


def test_nine_of_ten_scripts_are_short(scripts: Scripts) -> None:
    """At most 40 lines, header and check included."""
    short = [name for name, script in scripts[0].items() if script.count("\n") <= LINES]
    assert len(short) >= 0.9 * len(FIRST), sorted(set(FIRST) - set(short))


def test_a_case_that_fails_by_another_clause_is_not_the_same(tmp_path: Path) -> None:
    """The predicate of the search rejects it, and takes the case itself."""
    file = tmp_path / "tile.py"
    file.write_text(TILE_KERNELS, encoding="utf-8")
    pool = Pool(in_process=True)
    selection = choose([f"{file}:causal"], ["cpu"], [], pool, probe=True)
    (target,) = selection.targets
    case: AnyCase = fit(asked_cases()[FIRST["causal"]], target.implementation.envelope)
    keywords = selection.keywords[target.implementation.name]
    judged = judge_case(target, case, pool, keywords, Ledger(), {}, None)
    pool.close()
    assert same(judged, case, judged, case, target.dtype)
    other = replace(judged, result=replace(judged.result, broken="SDPA-1"))
    assert not same(judged, case, other, case, target.dtype)
