"""PLUGINS.md: its examples print what the page shows."""

from __future__ import annotations

import importlib.util
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from attention_conformance.impls.operators import SDPA
from attention_conformance.impls.tests.pages import Example, examples, lines, run, steady

pytestmark = pytest.mark.slow(30)

IMPLS = Path(__file__).parents[1]
PAGE = (IMPLS / "PLUGINS.md").read_text(encoding="utf-8")
#: The libraries that the project does not depend on are tested in test_plugins_libraries.
EXAMPLES = [each for each in examples(PAGE) if each.title != "Three libraries"]
#: Packages that an example needs in addition to NumPy.
NEEDS = {
    "PyTorch": "torch",
    "JAX": "jax",
    "A kernel": "torch",
    "Several ranks": "torch",
    "Merging": "numpy",
    "Packed sequences": "numpy",
    "Paged caches": "numpy",
    "Quantised caches": "numpy",
    "An ONNX file": "onnxruntime",
    "A program": "safetensors",
}


def test_every_kind_of_plug_in_has_an_example() -> None:
    """The kinds: frameworks, kernels, ranks, merges, packed and paged forms, a model, two programs, extra results."""
    titles = [each.title for each in EXAMPLES]
    assert titles == ["NumPy", *NEEDS, "A program", "What a function may say"]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.commands[-1].split()[4])
def test_the_page_shows_what_happens(example: Example, tmp_path: Path) -> None:
    """Each example, typed as it is, ends with the output below it."""
    package = NEEDS.get(example.title, "numpy")
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    if example.commands[0].startswith("cc "):
        if shutil.which("cc") is None:
            pytest.skip("there is no C compiler")
        shutil.copy(IMPLS / "examples" / "attention.c", tmp_path)
    printed = run(example, tmp_path)
    assert steady(printed).endswith(steady(example.shown)), printed


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.commands[-1].split()[4])
def test_an_example_is_short(example: Example) -> None:
    """A plug-in has fewer than 15 lines, without blank lines and comments; a kernel or a ring needs more."""
    for text in example.files.values():
        assert len(lines(text)) < ({"A kernel": 25, "Several ranks": 32}.get(example.title, 15))


@pytest.mark.parametrize("name", ["numpy_attention.py", "results.py"])
def test_the_functions_in_numpy_pass_everything(name: str, tmp_path: Path) -> None:
    """They pass all cases, not only those that the page shows."""
    (example,) = (each for each in EXAMPLES if name in each.files)
    command = f"pytest conformance -q --impl {name}:attention --dtype float32"
    printed = run(replace(example, commands=(command,)), tmp_path)
    assert " passed, " in printed
    assert " failed, " not in printed


def test_the_page_names_every_keyword() -> None:
    """The page lists the keywords of sdpa, in the order of the contract."""
    (listed,) = re.findall(r"There are\n`([a-z_ ]+)`", PAGE)
    assert tuple(listed.split()) == SDPA.keywords
