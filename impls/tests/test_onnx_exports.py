"""Exports of torch functions: they compute what the function does, and one serves calls of many shapes."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")

import numpy as np

from impls import calls
from impls.onnx import IMPLEMENTATIONS
from impls.tests.within import assert_within

EXPORTS = {each.name: each for each in IMPLEMENTATIONS if each.name.startswith("onnx-export")}


@pytest.fixture(autouse=True)
def _without_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count exports of this process only: nothing is read from disk or left there."""
    monkeypatch.setenv("ATTENTION_CONFORMANCE_CACHE", "")


def request(batch: int, queries: int, keys: int, **keywords: object) -> calls.Request:
    """Normal q, k and v with two heads of width 8."""
    rng = np.random.default_rng(0)
    shapes = ((batch, 2, queries, 8), (batch, 2, keys, 8), (batch, 2, keys, 8))
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    return calls.Request("cpu", q, k, v, keywords)


def check(name: str, given: calls.Request) -> None:
    """Assert that an export gives what the reference gives."""
    answer = calls.call(EXPORTS[name], given)
    assert answer.status == "returned", answer.text
    assert_within(answer.results, given.q, given.k, given.v, given.keywords)


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_agrees_with_the_reference(name: str) -> None:
    """Each exported function, with a mask, gives what the reference gives."""
    mask = np.tril(np.ones((2, 2, 6, 9), bool), 1)
    check(name, request(2, 6, 9, mask=mask))


def test_one_export_serves_two_shapes() -> None:
    """Batch and lengths are open: a second shape costs no second export, and its result is right."""
    from impls.onnx import exported

    name = "onnx-export18-torch-sdpa"
    check(name, request(2, 5, 7))
    before = len(exported.exports)
    check(name, request(4, 11, 6))
    assert len(exported.exports) == before


def test_one_query_has_an_export_of_its_own() -> None:
    """An axis of length 1 may broadcast, so it is never served by an export with an open axis."""
    from impls.onnx import exported

    name = "onnx-export18-torch-sdpa"
    check(name, request(2, 5, 7))
    before = len(exported.exports)
    check(name, request(2, 1, 7))
    assert len(exported.exports) == before + 1


def test_what_torch_cannot_express_is_unsupported() -> None:
    """The reason that the torch function gives passes through the export."""
    mask, bias = np.ones((5, 7), bool), np.zeros((5, 7), np.float32)
    answer = calls.call(EXPORTS["onnx-export18-torch-sdpa"], request(2, 5, 7, mask=mask, bias=bias))
    assert answer.status == "unsupported"


def test_an_export_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """The exporter's remarks do not reach the terminal."""
    calls.call(EXPORTS["onnx-export18-torch-sdpa"], request(1, 5, 7))
    assert capfd.readouterr() == ("", "")
