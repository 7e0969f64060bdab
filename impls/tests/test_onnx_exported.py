"""Exported models: with every keyword, kept on disk, and what is refused."""

from __future__ import annotations

import dataclasses
import functools
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")

import numpy as np

from attention_conformance.impls import calls
from attention_conformance.impls.calls import Reply, Request, call
from attention_conformance.impls.onnx import IMPLEMENTATIONS, exported, exporting
from attention_conformance.impls.process.pool import Worker
from attention_conformance.impls.tests.within import assert_within

pytestmark = pytest.mark.slow(20)

BY_NAME = {each.name: each for each in IMPLEMENTATIONS}


@pytest.fixture(autouse=True)
def _own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache on disk, and no cached model in this process, for one test."""
    monkeypatch.setenv("ATTENTION_CONFORMANCE_CACHE", str(tmp_path))
    forget(monkeypatch)


#: Names of what was exported, or tried, in order; models from disk are not included.
EXPORTS: list[str] = []


@pytest.fixture(autouse=True)
def _counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exports are recorded in ``EXPORTS``."""
    original = exporting.export

    def export(function: Any, *rest: Any) -> bytes:
        EXPORTS.append(function.__qualname__)
        return original(function, *rest)

    monkeypatch.setattr(exporting, "export", export)


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the prepared calls and their models, as a new process has none."""
    monkeypatch.setattr(calls, "_PREPARED", {})
    monkeypatch.setattr(exported, "_exported", functools.cache(exported._exported.__wrapped__))


def agrees(name: str, sizes: tuple[int, int, int, int, int], **keywords: Any) -> None:
    """Assert that an implementation agrees with the reference for (B, Hq, Hkv, Sq, Sk), D = 8."""
    b, hq, hkv, sq, sk = sizes
    rng = np.random.default_rng(sum(sizes))
    shapes = ((b, hq, sq, 8), (b, hkv, sk, 8), (b, hkv, sk, 8))
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    reply = call(BY_NAME[name], Request.qkv("cpu", q, k, v, keywords))
    assert reply.status == "returned", reply.text
    assert_within(reply.results, q, k, v, keywords)


def mask(*shape: int) -> np.ndarray:
    """A mask with some keys off and one fully masked row, the first."""
    found = np.random.default_rng(4).random(shape) > 0.4
    found[..., 0, :] = False
    return found


def test_export_with_every_keyword_agrees() -> None:
    """Arrays are inputs of the graph, and plain keywords are its constants."""
    b, sq, sk = 2, 5, 7
    agrees(
        "onnx-export23-torch-eager",
        (b, 4, 2, sq, sk),
        mask=mask(b, 1, sq, sk),
        bias=np.random.default_rng(5).standard_normal((4, sq, 1)).astype(np.float32),
        kv_lengths=np.arange(b) + sk - b,
        causal_offset=np.arange(b),
        is_causal=True,
        window=(3, 1),
        scale=0.3,
        softcap=2.0,
        return_weights=True,
        return_lse=True,
    )


@pytest.mark.parametrize("name", ["onnx-export18-torch-eager", "onnx-export23-torch-eager"])
def test_one_export_serves_every_length(name: str) -> None:
    """Batch and lengths are open, also if one is 1: a model is exported once and run with many sizes."""
    before = len(EXPORTS)
    for b, sq, sk in ((2, 5, 7), (3, 6, 4), (1, 1, 9), (2, 4, 1), (3, 3, 3)):
        agrees(name, (b, 4, 2, sq, sk), mask=mask(b, 4, sq, sk), is_causal=True)
    assert len(EXPORTS) - before == 1


SDPA_EXPORTS = [name for name, each in BY_NAME.items() if name.startswith("onnx-export") and each.operator == "sdpa"]


@pytest.mark.parametrize("name", SDPA_EXPORTS)
def test_an_export_agrees_with_the_reference(name: str) -> None:
    """Each exported function, with a mask, gives what the reference gives."""
    agrees(name, (2, 2, 2, 6, 9), mask=np.tril(np.ones((2, 2, 6, 9), bool), 1))


@pytest.mark.parametrize("shape", [(2, 4, 1, 7), (1, 4, 5, 7), (5, 7)])
def test_mask_that_repeats_has_an_export_of_its_own(shape: tuple[int, ...]) -> None:
    """An axis of length 1 that broadcasts is never served by an export in which it is open."""
    agrees("onnx-export23-torch-eager", (2, 4, 4, 5, 7), mask=mask(2, 4, 5, 7))
    before = len(EXPORTS)
    agrees("onnx-export23-torch-eager", (2, 4, 4, 5, 7), mask=mask(*shape))
    assert len(EXPORTS) == before + 1


def test_function_that_takes_some_lengths_only_is_not_exported_with_open_ones() -> None:
    """A trace at one length is not what the function does at another length."""
    from attention_conformance.impls.onnx.exporting import export
    from attention_conformance.impls.torch import eager

    def branching(q: Any, k: Any, v: Any) -> Any:
        return eager.attention(q, k, v, is_causal=q.shape[2] > 4)

    shapes = [("q", (3, 2, 5, 8)), ("k", (3, 2, 7, 8)), ("v", (3, 2, 7, 8))]
    assert export(branching, 18, "float32", {}, shapes, None)
    with pytest.raises(Exception, match=r"[Cc]onstraint"):
        export(branching, 18, "float32", {}, shapes, exported.OPEN)


def test_function_that_takes_some_lengths_only_is_exported_for_each() -> None:
    """Open lengths are tried once; where they fail, every length has its own model."""
    (implementation,) = (each for each in IMPLEMENTATIONS if each.name == "onnx-export18-torch-eager")
    target = "attention_conformance.impls.tests.exported_call:branching"
    other = dataclasses.replace(implementation, target=target, deferred="")
    rng = np.random.default_rng(3)
    before = len(EXPORTS)
    for queries in (4, 5):
        q, k, v = (rng.standard_normal((2, 2, n, 8)).astype(np.float32) for n in (queries, 7, 7))
        reply = call(other, Request.qkv("cpu", q, k, v))
        assert reply.status == "returned", reply.text
        assert_within(reply.results, q, k, v, {"is_causal": queries > 4})
    assert len(EXPORTS) - before == 3


def refused(name: str, **keywords: Any) -> Reply:
    """The reply to a call whose export fails."""
    q, k, v = (np.zeros((1, 2, n, 8), np.float32) for n in (3, 5, 5))
    reply = call(BY_NAME[name], Request.qkv("cpu", q, k, v, keywords))
    assert reply.status != "returned"
    return reply


#: A call whose export raises, and one that torch's function refuses too.
UNTRACEABLE, UNSUPPORTED = {"is_causal": True, "causal_offset": 2}, {"is_causal": True, "mask": np.ones((3, 5), bool)}


@pytest.mark.parametrize(("keywords", "status"), [(UNTRACEABLE, "raised"), (UNSUPPORTED, "unsupported")])
def test_a_failure_is_kept(monkeypatch: pytest.MonkeyPatch, keywords: dict[str, Any], status: str) -> None:
    """A failure is kept in this process and on disk: the same reply, and no second try."""
    first = refused("onnx-export18-torch-sdpa", **keywords)
    assert first.status == status
    before = len(EXPORTS)
    assert refused("onnx-export18-torch-sdpa", **keywords) == first
    forget(monkeypatch)
    assert refused("onnx-export18-torch-sdpa", **keywords) == first
    assert len(EXPORTS) == before


@pytest.mark.parametrize("error", [MemoryError(), OSError("disk"), RuntimeError("[enforce] can't allocate memory")])
def test_what_the_machine_lacked_is_tried_again(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Such an error says nothing about the model."""
    from attention_conformance.impls.onnx import exporting

    def failing(*_: object) -> bytes:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(exporting, "export", failing)
        assert type(error).__name__ in refused("onnx-export18-torch-eager").text
    agrees("onnx-export18-torch-eager", (1, 2, 2, 3, 5))


def test_a_broken_record_of_a_failure_is_no_failure(tmp_path: Path) -> None:
    """An unreadable record is tried again."""
    exported.keep("one", exported.NotExported("TypeError", "text", unsupported=False))
    assert exported.cached("one") == exported.NotExported("TypeError", "text", unsupported=False)
    (file,) = tmp_path.rglob("one.json")
    file.write_text('{"type": 1}')
    assert exported.cached("one") is None


def test_tables_change_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables that are made once give the same model as regenerated tables."""
    from attention_conformance.impls.onnx import exporting
    from attention_conformance.impls.torch import eager, sdpa

    shapes = [("q", (3, 2, 5, 8)), ("k", (3, 2, 7, 8)), ("v", (3, 2, 7, 8))]

    def exports() -> list[bytes]:
        asked: tuple[tuple[Any, dict[str, Any], int], ...]
        asked = ((eager, {"scale": 0.3}, 23), (sdpa, {}, 23), (sdpa, {}, 18))
        return [exporting.export(of.attention, opset, "float32", given, shapes, None) for of, given, opset in asked]

    quick = [exports(), exports()]
    assert len(exporting._tables()) == 5
    monkeypatch.setattr(exporting, "_tables", tuple)
    assert quick == [exports()] * 2


def test_operators_are_as_before_after_an_export() -> None:
    """Kernels that an export installs in torch's operators, and its rules for tensors without values, are removed."""
    import torch
    from torch._subclasses.fake_impls import op_implementations_dict

    from attention_conformance.impls.onnx import exporting
    from attention_conformance.impls.torch import eager

    shapes = [("q", (3, 2, 5, 8)), ("k", (3, 2, 7, 8)), ("v", (3, 2, 7, 8))]
    operator = torch.ops.aten.linear.default

    def state() -> tuple[Any, ...]:
        return dict(operator.py_kernels), set(op_implementations_dict)

    exporting.export(eager.attention, 18, "float32", {}, shapes, None)
    before = state()
    exporting.export(eager.attention, 18, "float32", {"scale": 0.3}, shapes, None)
    assert state() == before


def test_installed_kernels_are_gone_after_an_error() -> None:
    """Installed kernels are also removed if the export raises."""
    from contextlib import contextmanager

    from attention_conformance.impls.onnx import exporting

    fake: dict[Any, Any] = {}

    class Operator:
        def __init__(self) -> None:
            self.py_kernels, self._dispatch_cache = {"own": 1}, {"stale": 1}

    one = Operator()

    @contextmanager
    def override(table: Any) -> Any:
        one.py_kernels["other"] = fake[one] = table[one]
        yield
        del one.py_kernels["other"], fake[one]

    remembering = exporting._installed(override, fake)
    with remembering({one: 2}):
        assert one.py_kernels == {"own": 1, "other": 2}

    def failing() -> None:
        with remembering({one: 2}):
            raise KeyError(one.py_kernels["other"], fake[one])

    with pytest.raises(KeyError, match="2, 2"):
        failing()
    assert (one.py_kernels, one._dispatch_cache, fake) == ({"own": 1}, {}, {})


def test_an_export_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """The exporter's messages do not reach the terminal."""
    agrees("onnx-export18-torch-sdpa", (2, 2, 2, 5, 7))
    assert capfd.readouterr() == ("", "")


def test_second_process_finds_the_model_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an empty memory and the same disk nothing is exported."""
    agrees("onnx-export18-torch-sdpa", (2, 2, 2, 5, 7))
    before = len(EXPORTS)
    forget(monkeypatch)
    agrees("onnx-export18-torch-sdpa", (2, 2, 2, 4, 9))
    assert len(EXPORTS) == before


def test_log_works_after_an_export() -> None:
    """The exporter silences only its own log messages."""
    agrees("onnx-export18-torch-sdpa", (2, 2, 2, 5, 7), scale=0.4)
    assert logging.root.manager.disable == logging.NOTSET


def test_refusal_of_the_exporter_is_unsupported() -> None:
    """torch.onnx.export does not translate is_causal together with a mask."""
    q = np.zeros((2, 2, 5, 8), np.float32)
    reply = call(
        BY_NAME["onnx-export23-torch-sdpa"],
        Request.qkv("cpu", q, q, q, {"is_causal": True, "mask": np.ones((5, 5), bool)}),
    )
    assert reply.status == "unsupported", reply.text


def test_mismatched_lengths_are_refused() -> None:
    """K and v of different lengths fit no model, so the function that would be exported refuses them."""
    q, k, v = (np.zeros((2, 2, n, 8), np.float32) for n in (5, 7, 6))
    assert call(BY_NAME["onnx-export18-torch-eager"], Request.qkv("cpu", q, k, v)).status == "raised"


@pytest.mark.parametrize(
    ("declared", "shape", "fit"),
    [
        ([["s1", 2], ["s1", 3]], [(4, 2), (4, 3)], True),
        ([["s1", 2], ["s1", 3]], [(4, 2), (5, 3)], False),
        ([["s1", 2]], [(4, 1)], False),
        ([["s1 + 2"]], [(4,)], False),
        ([["s1"]], [(4, 2)], False),
        ([["s1"]], [(4,), (4,)], False),
    ],
)
def test_shapes_fit_a_declaration(declared: list[list[Any]], shape: list[tuple[int, ...]], fit: bool) -> None:
    """A symbol is the same length everywhere; formulas are not solved."""
    assert exported.fits([SimpleNamespace(shape=each) for each in declared], shape) is fit


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ('def f(x):\n    """Sum."""\n    return x + 1\n', True),
        ("# A comment.\n\ndef f(x):\n    return (x + 1)  # and one more\n", True),
        ("def f(x):\n    return x + 2\n", False),
        ('def f(x):\n    return "x" + 1\n', False),
    ],
)
def test_code_is_what_a_source_does(other: str, same: bool) -> None:
    """Comments and docstrings are not part of a model's key; every other change is."""
    assert (exported.code("def f(x):\n    return x + 1\n") == exported.code(other)) is same


def test_torch_is_not_imported_where_models_are_on_disk() -> None:
    """A process that finds the model on disk does not import torch, which saves a second."""
    name = "onnx-export18-torch-sdpa"
    agrees(name, (2, 2, 2, 5, 7))
    worker = Worker()
    assert worker.call("attention_conformance.impls.tests.exported_call:status", name, timeout=60) == "returned"
    assert not worker.call("attention_conformance.impls.tests.exported_call:has_torch", timeout=60)
    worker.close()
