"""Scripts of layers, packs, merges, latents and gradients: short, of one mistake, and right once it is mended."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from attention_conformance.conformance.cases import AnyCase, every_case
from attention_conformance.conformance.diagnosis.explain import Simplifier
from attention_conformance.conformance.ledger.load import Ledger
from attention_conformance.conformance.repro import text, wrong_elements
from attention_conformance.conformance.repro.inputs import arrays, left_out, simpler_forms
from attention_conformance.conformance.repro.simpler import LONG
from attention_conformance.conformance.run_case import Judged, judge_case
from attention_conformance.conformance.targets import choose
from attention_conformance.conformance.tests.operator_kernels import FAILED, NUMPY, TORCH
from attention_conformance.conformance.tests.repro_scripts import Ran, run
from attention_conformance.impls.process.pool import Pool

pytestmark = pytest.mark.slow(60)

NAMES = [name for name, (_, behind) in FAILED.items() if not behind or importlib.util.find_spec("torch")]


@dataclass(frozen=True)
class Scripts:
    """The script of each function's case, the case, and the outcomes before and after mending."""

    texts: dict[str, str]
    cases: dict[str, AnyCase]
    wrong: dict[str, Ran]
    mended: dict[str, Ran]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Scripts:
    """The scripts of all functions, made once."""
    folder = tmp_path_factory.mktemp("operators")
    # A path of a few letters, as users give it: the script names it, and a deep folder would need another line.
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.chdir(folder)
    files = {"": folder / "of_numpy.py", "@torch+gradients": folder / "of_torch.py"}
    files[""].write_text(NUMPY, encoding="utf-8")
    files["@torch+gradients"].write_text(TORCH, encoding="utf-8")
    texts, cases, paths, pool = dict[str, str](), dict[str, AnyCase](), dict[str, Path](), Pool(in_process=False)
    for name in NAMES:
        case_name, behind = FAILED[name]
        texts[name], cases[name] = simplest(f"{files[behind].name}:{name}{behind}", every_case()[case_name], pool)
        paths[name] = folder / f"{name}-script.py"
        paths[name].write_text(texts[name], encoding="utf-8")
    pool.close()
    wrong = run(list(paths.values()))
    for file in files.values():
        file.write_text(file.read_text(encoding="utf-8").replace("WRONG = True", "WRONG = False"), encoding="utf-8")
    mended = run(list(paths.values()))
    monkeypatch.undo()
    return Scripts(texts, cases, *({name: ran[path] for name, path in paths.items()} for ran in (wrong, mended)))


def simplest(place: str, case: AnyCase, pool: Pool) -> tuple[str, AnyCase]:
    """The script of a function's failure on a case, and the case with the script's inputs."""
    selection = choose([place], ["cpu"], ["float32"], pool, probe=True)
    (target,) = selection.targets
    keywords = selection.keywords[target.implementation.name]
    judge: Callable[[AnyCase], Judged] = lambda one: judge_case(target, one, pool, keywords, Ledger(), {}, None)  # noqa: E731
    judged, shown = Simplifier(pool, selection.keywords, {}, None)(target, case, judge(case))
    return text(judged.result, target, shown, wrong_elements(judged, shown, target), {}), shown


@pytest.mark.parametrize("name", NAMES)
def test_a_script_is_short(scripts: Scripts, name: str) -> None:
    """A script has at most 40 lines, header and check included."""
    assert scripts.texts[name].count("\n") <= LONG


@pytest.mark.parametrize("name", NAMES)
def test_a_script_fails_against_the_wrong_function(scripts: Scripts, name: str) -> None:
    """A script fails by values, with exit code 1."""
    assert scripts.wrong[name].code == 1, scripts.wrong[name].printed
    assert "WRONG" in scripts.wrong[name].printed


@pytest.mark.parametrize("name", NAMES)
def test_a_script_passes_against_the_right_function(scripts: Scripts, name: str) -> None:
    """A script ends with exit code 0."""
    assert scripts.mended[name].code == 0, scripts.mended[name].printed


@pytest.mark.parametrize("name", NAMES)
def test_a_script_defines_nothing(scripts: Scripts, name: str) -> None:
    """A script has no function and no class: only imports, inputs, the call and the check."""
    assert "def " not in scripts.texts[name]
    assert "class " not in scripts.texts[name]


def test_biases_that_a_failure_does_not_need_are_left_out(scripts: Scripts) -> None:
    """Biases that a failure does not need are left out, and the head says so; a bias that it needs is given."""
    assert {"b_q", "b_k", "b_v", "b_o"} <= set(left_out(scripts.cases["mha"]))
    assert "Without " in scripts.texts["mha"]
    assert "b_o" not in left_out(scripts.cases["mha_biases"])
    assert "b_o" in scripts.texts["mha_biases"]


@pytest.mark.parametrize("name", [name for name in ("attention", "layer") if name in NAMES])
def test_numbers_hide_nothing_where_nothing_tells_causes_apart(scripts: Scripts, name: str) -> None:
    """If every row is wrong and unexplained, there are no equal numbers, counts, identities or equal arrays."""
    written = simpler_forms(scripts.cases[name])
    assert written
    assert all("** 3 % 101" in text for text in written.values())
    given = [array.tobytes() for array in arrays(scripts.cases[name], "float32").values()]
    assert len(set(given)) == len(given)


def test_a_function_keeps_its_name(scripts: Scripts) -> None:
    """A function keeps its name if it is called as its file declares it."""
    assert "from of_numpy import flash_varlen\n" in scripts.texts["flash_varlen"]
    assert "output = flash_varlen(q, k, v, cu_seqlens_q" in scripts.texts["flash_varlen"]


def test_tables_stay(scripts: Scripts) -> None:
    """Boundaries, pages and lengths are not simplified, as they have a meaning."""
    assert not {"cu_seqlens_q", "block_table", "kv_lengths"} & set(simpler_forms(scripts.cases["paged"]))
    assert scripts.cases["paged"].inputs("float32").block_table.tolist() == (
        every_case()["paged-decode"].inputs("float32").block_table.tolist()
    )
