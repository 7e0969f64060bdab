"""Untrusted descriptions and arrays: each contradiction within a vector is refused by name."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.conformance.tests.vectors import change, change_json, hash_again, refused
from attention_conformance.conformance.vectors import files
from attention_conformance.conformance.vectors.check import Origin, check
from attention_conformance.conformance.vectors.files import VectorError
from attention_conformance.conformance.vectors.index import Chosen
from attention_conformance.impls import strict

#: The files of the vector that tests damage.
ABOUT, TENSORS = "sdpa/float32/plain.json", "sdpa/float32/plain.safetensors"

Edit = Callable[[Any], Any]


#: Changes of a description.
ABOUTS: dict[str, tuple[Edit, type[VectorError], str]] = {
    "a later format": (lambda about: about.update(format=2), strict.WrongFormat, "has format 2, expected 1"),
    "a field less": (lambda about: about.pop("refused"), strict.WrongFields, "lacks 'refused'"),
    "a field more": (lambda about: about.update(run="me"), strict.WrongFields, "unknown field 'run'"),
    "a text for true": (
        lambda about: about.update(refused="no"),
        strict.WrongFields,
        "'refused' is 'no', expected true or false",
    ),
    "true for a number": (
        lambda about: about.update(repeats=True),
        strict.WrongFields,
        "'repeats' is True, expected an integer",
    ),
    "an unknown operator": (lambda about: about.update(operator="conv"), strict.WrongFields, "have an operator"),
    "an unknown dtype": (lambda about: about.update(dtype="float8"), strict.WrongFields, "an operator and a dtype"),
    "an escape in a text": (lambda about: about.update(why="\x1b[2J"), strict.WrongFields, "texts that can be printed"),
    "half a character": (lambda about: about.update(why="\ud800"), strict.WrongFields, "texts that can be printed"),
    "an escape in an axis": (
        lambda about: about["results"]["output"].update(axes=["\x1b[2J"]),
        strict.WrongFields,
        "axes of output that can be printed",
    ),
    "no clause": (lambda about: about.update(clauses=[]), strict.WrongFields, "clauses of the spec"),
    "an unknown clause": (lambda about: about.update(clauses=["SDPA-999"]), strict.WrongFields, "clauses of the spec"),
    "a milder level": (lambda about: about.update(level="SHOULD"), strict.WrongFields, "level of its first clause"),
    "other arguments": (lambda about: about.update(arguments=["q", "k"]), strict.WrongFields, "arguments of sdpa"),
    "an unknown keyword": (lambda about: about.update(keywords=["gamma"]), strict.WrongFields, "keywords of sdpa"),
    "an unknown option": (lambda about: about["options"].update(heads=2), strict.WrongFields, "options of sdpa"),
    "an option too deep": (lambda about: about["options"].update(scale=[[1]]), strict.WrongFields, "'options' is"),
    "a huge integer": (lambda about: about["options"].update(scale=10**400), strict.WrongFields, "a plain value"),
    "a large one": (lambda about: about["options"].update(scale=2**53 + 1), strict.WrongFields, "a plain value"),
    "no results": (lambda about: about.update(results={}), strict.WrongFields, "the results output"),
    "a result more": (
        lambda about: about["results"].update(lse=about["results"]["output"]),
        strict.WrongFields,
        "the results output",
    ),
    "a wider dtype": (
        lambda about: about["results"]["output"].update(dtypes=["float32", "float16"]),
        strict.WrongFields,
        "the dtypes float32",
    ),
    "a smaller range": (
        lambda about: about["results"]["output"].update(largest=1.0),
        strict.WrongFields,
        "as the largest number",
    ),
    "fewer axes": (
        lambda about: about["results"]["output"].update(axes=["row"]),
        files.WrongArrays,
        "not float64 with the axes row",
    ),
    "fewer profiles": (lambda about: about.update(profiles=["tf32"]), strict.WrongFields, "the profiles of float32"),
    "a looser default": (lambda about: about.update(profile="tf32"), strict.WrongFields, "the profile of float32"),
    "an unknown layout": (lambda about: about.update(memory="paged"), strict.WrongFields, "a layout"),
    "endless calls": (lambda about: about.update(repeats=10**9), strict.WrongFields, "'repeats' is 1000000000"),
    "refused with results": (lambda about: about.update(refused=True), strict.WrongFields, "the results of no call"),
}


@pytest.mark.parametrize("what", ABOUTS)
def test_a_description_is_refused(vectors: Path, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each error in a description is refused by its name, though the file's hash is right."""
    edit, error, said = ABOUTS[what]
    change_json(vectors / ABOUT, edit)
    hash_again(vectors)
    refused(vectors, error, f"{ABOUT.removesuffix('.json')}.*{said}", capsys)


def put(name: str, value: Any) -> Edit:
    """An edit of the first element of an array."""
    return lambda arrays: arrays[name].__setitem__((0,) * arrays[name].ndim, value)


#: Changes of the arrays of a vector.
ARRAYS: dict[str, tuple[Edit, type[VectorError], str]] = {
    "no expected result": (lambda a: a.pop("expected.output"), files.WrongArrays, "lacks expected.output"),
    "no input": (lambda a: a.pop("input.q"), files.WrongArrays, "lacks input.q"),
    "an array more": (lambda a: a.update(x=a["input.q"]), files.WrongArrays, "has the unknown array x"),
    "a bound of another shape": (
        lambda a: a.update({"bound.wide.output": a["bound.wide.output"][:1]}),
        files.WrongArrays,
        "not float64 in the shape of expected.output",
    ),
    "expected in float32": (
        lambda a: a.update({"expected.output": a["expected.output"].astype(np.float32)}),
        files.WrongArrays,
        "expected.output is not float64",
    ),
    "NaN in a bound": (put("bound.wide.output", np.nan), files.BadBound, "NaN, infinite or negative"),
    "an infinite bound": (put("bound.tf32.output", np.inf), files.BadBound, "bound.tf32.output"),
    "a negative bound": (put("bound.wide.output", -1.0), files.BadBound, "bound.wide.output"),
}


@pytest.mark.parametrize("what", ARRAYS)
def test_arrays_that_do_not_fit_are_refused(vectors: Path, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each error in the arrays of a vector is refused by its name, though the file's hash is right."""
    edit, error, said = ARRAYS[what]
    change(vectors / TENSORS, edit)
    hash_again(vectors)
    refused(vectors, error, f"{TENSORS}.*{said}", capsys)


@pytest.mark.parametrize("shape", [(2, 3, 7, 8), (2, 0, 7, 8), (2, 2, 7, 9), (1, 2, 7, 8), (8,)])
def test_values_that_fit_nothing_end_in_a_judgement(vectors: Path, shape: tuple[int, ...]) -> None:
    """A vector whose v does not fit its output is judged, as v only serves to describe a wrong output."""
    change(vectors / TENSORS, lambda a: a.update({"input.v": np.ones(shape, np.float32)}))
    hash_again(vectors)
    change(vectors.with_name("results") / TENSORS, lambda a: a["output"].__iadd__(1))
    (result,) = check(vectors, vectors.with_name("results"), Chosen(cases=["plain"]), Origin("mine"), None).results
    assert (result.outcome, result.error_pattern) == (Outcome.FAILED, "")


@pytest.mark.parametrize("shape", [(2, 7, 8), (2, 10**12, 0, 8)])
def test_an_output_of_another_form_ends_in_a_judgement(vectors: Path, shape: tuple[int, ...]) -> None:
    """An output of three axes, or of 10¹² heads without a row, is judged without reading or making its values."""
    axes = ["batch", "head", "row", "column"][: len(shape)]
    change_json(vectors / ABOUT, lambda about: about["results"]["output"].update(axes=axes))

    def of_shape(arrays: dict[str, np.ndarray]) -> None:
        names = [name for name in arrays if name.endswith(".output")]
        arrays |= {name: np.zeros(shape) for name in names}

    change(vectors / TENSORS, of_shape)
    hash_again(vectors)
    change(vectors.with_name("results") / TENSORS, lambda a: a.update(output=np.ones(shape, np.float32)))
    (result,) = check(vectors, vectors.with_name("results"), Chosen(cases=["plain"]), Origin("mine"), None).results
    assert result.outcome is (Outcome.FAILED if np.prod(shape) else Outcome.PASSED)


def test_values_are_not_repeated_for_each_head(vectors: Path) -> None:
    """30,000 heads over 30,000 keys need 30,000 numbers for their mean, not a thousand million."""
    many = 30_000

    def widen(arrays: dict[str, np.ndarray]) -> None:
        names = [name for name in arrays if name.endswith(".output")]
        arrays |= {name: np.zeros((1, many, 1, 1)) for name in names}
        arrays["input.v"] = np.ones((1, 1, many, 1), np.float32)

    change(vectors / TENSORS, widen)
    hash_again(vectors)
    change(vectors.with_name("results") / TENSORS, lambda a: a.update(output=np.ones((1, many, 1, 1), np.float32)))
    tracemalloc.start()
    (result,) = check(vectors, vectors.with_name("results"), Chosen(cases=["plain"]), Origin("mine"), None).results
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (result.outcome, result.error_pattern) == (Outcome.FAILED, "the mean of v")
    assert most < 1 << 28
