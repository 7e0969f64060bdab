"""Standalone source: code that is copied, code that is left out, and code that cannot be copied."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from attention_conformance.conformance.repro import inline
from attention_conformance.conformance.repro.inline import CannotInline, Inliner, import_lines, lambda_at, parsed_import

pytestmark = pytest.mark.slow

MODULE = '''
"""A module."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace as changed

import numpy as np

from kernels.other import LIMIT, helper
from kernels.third import helper as renamed

#: How many.
#: Really.
COUNT: int = 3
UNUSED = 4


@dataclass(frozen=True)
class Record:
    """A record."""

    value: float
    place: int | None = None


def first(x: np.ndarray, *, scale: float | None = None, rest: int = COUNT) -> tuple[float, float]:
    """Use a constant."""
    UNUSED = x  # a name of its own
    number: int = 5  # annotated
    return math.sqrt(helper(UNUSED)), number


def long(
    one: np.ndarray,
    two: np.ndarray,
    three: Iterator[int] | None = None,
) -> np.ndarray:
    return [Record(value) for value in (one, two) if value < LIMIT]


def recursive(n: int) -> int:
    return n if n < 2 else recursive(n - 1) + other(n)


def other(n: int) -> int:
    return recursive(n - 2)


def clashing() -> None:
    return clash() + first(1)


def unknown() -> None:
    return nowhere()


def under_another_name() -> None:
    return renamed()


EDITS = [lambda x, y=1: helper(x) + y, 2]
TWO = (lambda: 1, lambda: 2)

from kernels.third import clash
'''
OTHER = """
LIMIT = 7


def helper(x: float) -> float:
    return min(x, LIMIT)
"""
THIRD = """
def helper() -> int:
    return 1


def clash() -> int:
    return helper()
"""


@pytest.fixture(autouse=True)
def _package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package whose sources are copied, like those of this suite."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    for name, text in (("__init__", ""), ("main", MODULE), ("other", OTHER), ("third", THIRD)):
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(inline, "OWN", "kernels")
    inline._parsed.cache_clear()
    inline._definition.cache_clear()
    for name in [name for name in sys.modules if name.split(".")[0] == "kernels"]:
        monkeypatch.delitem(sys.modules, name)


def inlined(*names: str) -> tuple[str, str]:
    """The imports and the definitions for some functions of the module."""
    inliner = Inliner()
    text = inliner.add(f"kernels.main:{name}" for name in names)
    return import_lines(inliner.imports), text


def test_a_function_brings_what_it_uses_before_it() -> None:
    """Constants, helpers of other modules and imports come along; nothing unused, and no module of the package."""
    imports, text = inlined("first")
    assert imports == "import math"
    names = ["COUNT = 3", "LIMIT = 7", "def helper(x):", "def first(x, *, scale=None, rest=COUNT):"]
    places = [text.index(name) for name in names]
    assert places == sorted(places)
    assert "UNUSED = 4" not in text
    assert "Record" not in text


def test_what_is_written_runs() -> None:
    """The copied source runs without any of the modules."""
    imports, text = inlined("first")
    names: dict[str, object] = {}
    exec(f"{imports}\n{text}\nfound = first(9.0)", names)  # noqa: S102  (the text under test)
    assert names["found"] == (np.sqrt(7.0), 5)


def test_comments_and_docstrings_stay() -> None:
    """Comments and docstrings are kept, as they make a definition readable."""
    _, text = inlined("first")
    assert "#: How many.\n#: Really.\nCOUNT = 3" in text
    assert '"""Use a constant."""' in text
    assert "number = 5  # annotated" in text


def test_annotations_of_functions_go_and_those_of_records_stay() -> None:
    """A dataclass keeps its annotations, which it needs."""
    imports, text = inlined("long")
    assert "def long(one, two, three=None):" in text
    assert "    place: int | None = None" in text
    assert imports == "from dataclasses import dataclass"


def test_functions_that_call_each_other_come_once() -> None:
    """Functions that call each other are each copied once."""
    _, text = inlined("recursive", "other")
    assert text.count("def recursive(n):") == text.count("def other(n):") == 1


def test_nothing_is_given_twice() -> None:
    """A second call of ``add`` does not repeat what the first one copied."""
    inliner = Inliner()
    inliner.add(["kernels.main:first"])
    assert inliner.add(["kernels.other:helper"]) == ""


@pytest.mark.parametrize("name", ["clashing", "unknown", "under_another_name", "absent"])
def test_what_cannot_stand_alone_is_refused(name: str) -> None:
    """Two definitions of a name, none, a name imported under another name, and a missing function are refused."""
    with pytest.raises(CannotInline):
        inlined(name)


def test_a_refusal_leaves_nothing_behind() -> None:
    """After a refusal, what was being copied is copied again on request."""
    inliner = Inliner()
    with pytest.raises(CannotInline):
        inliner.add(["kernels.main:clashing"])
    assert not inliner.imports
    assert "def clash():" in inliner.add(["kernels.third:clash"])


def line_of(text: str) -> int:
    """The line of the module that begins with a text."""
    return next(i for i, line in enumerate(MODULE.splitlines(), 1) if line.startswith(text))


def test_a_lambda_is_found_by_its_line() -> None:
    """A lambda is found with its arguments, its body, and the names that it needs."""
    assert lambda_at("kernels.main", line_of("EDITS")) == ("x, y=1", "helper(x) + y", ["helper"])


@pytest.mark.parametrize("text", ["TWO", "COUNT"])
def test_a_line_with_two_lambdas_or_none_is_refused(text: str) -> None:
    """A line with two lambdas or none is refused, as the lambda is ambiguous."""
    with pytest.raises(CannotInline):
        lambda_at("kernels.main", line_of(text))


def test_imports_are_sorted_and_joined() -> None:
    """Imports have the standard library first, as formatters sort them."""
    lines = ("import numpy as np", "from jax import lax, nn", "import sys", "from jax import tree", "import os.path")
    found = import_lines(each for line in lines for each in parsed_import(line))
    assert found == "import os.path\nimport sys\n\nimport numpy as np\nfrom jax import lax, nn, tree"
