"""PLUGINS.md: what it prints is what happens."""

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
#: The libraries that the project does not depend on have a test of their own.
EXAMPLES = [each for each in examples(PAGE) if each.title != "Three libraries"]
#: What an example needs besides NumPy.
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
    """Frameworks, kernels, ranks, merges, packed and paged forms, a model, two programs, and extra results."""
    titles = [each.title for each in EXAMPLES]
    assert titles == ["NumPy", *NEEDS, "A program", "What a function may say"]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.commands[-1].split()[4])
def test_the_page_shows_what_happens(example: Example, tmp_path: Path) -> None:
    """Each example, typed as it stands, ends with what stands below it."""
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
    """A plug-in takes fewer than 15 lines, without blank ones and comments; a kernel or a ring is longer by itself."""
    for text in example.files.values():
        assert len(lines(text)) < ({"A kernel": 25, "Several ranks": 32}.get(example.title, 15))


@pytest.mark.parametrize("name", ["numpy_attention.py", "results.py"])
def test_the_functions_in_numpy_pass_everything(name: str, tmp_path: Path) -> None:
    """Not only the cases that the page shows."""
    (example,) = (each for each in EXAMPLES if name in each.files)
    command = f"pytest conformance -q --impl {name}:attention --dtype float32"
    printed = run(replace(example, commands=(command,)), tmp_path)
    assert " passed, " in printed
    assert " failed, " not in printed


def test_the_page_names_every_keyword() -> None:
    """The keywords of sdpa stand there, in the order of the contract."""
    (listed,) = re.findall(r"There are\n`([a-z_ ]+)`", PAGE)
    assert tuple(listed.split()) == SDPA.keywords
