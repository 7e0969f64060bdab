"""Refusals of the built-in adapters: each has the library's own words that justify it in a comment next to it."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import re
from pathlib import Path

import pytest

import attention_conformance.impls as room

ROOM = Path(room.__path__[0])

#: The adapters of libraries; the other implementations are our own functions, without a library's documentation.
ADAPTERS = ("torch/sdpa.py", "torch/modules.py", "torch/gradients.py", "jax/nn.py", "jax/varlen.py", *(
    f"onnx/{name}.py" for name in ("attention", "contrib", "exporting", "graph", "layer")
))  # fmt: skip

_RAISE = re.compile(r"^ *raise NotImplementedError\(")


def refusals(path: str) -> list[tuple[int, str]]:
    """The lines that refuse, with the comment above each."""
    lines = (ROOM / path).read_text(encoding="utf-8").splitlines()
    return [(number + 1, lines[number - 1].strip()) for number, line in enumerate(lines) if _RAISE.match(line)]


@functools.cache
def documentation() -> str:
    """The text of the installed libraries' documentation, on one line; "" without any library."""
    parts: list[str] = []
    if importlib.util.find_spec("torch"):
        import torch

        module = torch.nn.MultiheadAttention
        parts += [torch.nn.functional.scaled_dot_product_attention.__doc__ or "", module.__doc__ or ""]
        parts += [module.forward.__doc__ or "", inspect.getsource(module.forward)]
    if importlib.util.find_spec("jax"):
        import jax

        parts.append(jax.nn.dot_product_attention.__doc__ or "")
    if importlib.util.find_spec("onnxruntime") and importlib.util.find_spec("onnx"):
        import onnx
        from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

        schemas = [s for s in get_all_operator_schema() if s.domain == "com.microsoft"]
        schemas += [onnx.defs.get_schema("Attention", version) for version in (23, 24)]
        for each in schemas:
            described = [*each.inputs, *each.attributes.values()]
            parts += [each.doc or "", *(one.description or "" for one in described)]
    return " ".join(" ".join(parts).split())


def test_every_adapter_that_refuses_is_looked_at() -> None:
    """Every adapter that refuses is checked; scripts refuse as adapters do, models by their inputs; rings plug in."""
    files = {
        path.relative_to(ROOM).as_posix() for each in ("torch", "jax", "onnx") for path in (ROOM / each).glob("*.py")
    }
    refusing = {path for path in files if refusals(path)}
    others = {path for path in refusing if path.endswith(("/script.py", "/rings.py"))}
    assert refusing == {*ADAPTERS, "onnx/file.py"} | others


@pytest.mark.parametrize("path", ADAPTERS)
def test_a_refusal_is_justified_beside_it(path: str) -> None:
    """The comment quotes the documentation, or the library's own message (``says``)."""
    assert not [number for number, comment in refusals(path) if not re.match(r'# (says )?"', comment)]


@pytest.mark.parametrize("path", ADAPTERS)
def test_the_words_are_those_of_the_library(path: str) -> None:
    """The quoted words are in the documentation of the installed version."""
    if not all(importlib.util.find_spec(name) for name in ("torch", "jax", "onnx", "onnxruntime")):
        pytest.skip("not every library is installed")
    quoted = [
        (number, words)
        for number, comment in refusals(path)
        if not comment.startswith("# says")
        for words in re.findall(r'"([^"]+)"', comment)
    ]
    assert not [each for each in quoted if each[1] not in documentation()]


def test_what_a_library_is_said_to_say_has_its_trial() -> None:
    """Words after ``says`` are in no documentation: a test below provokes each of them."""
    said = {comment.split('"')[1] for path in ADAPTERS for _, comment in refusals(path) if comment.startswith("# says")}
    assert said == {*GROUPED, "No available kernel.", "derivative for aten::… is not implemented", "scale : float"}


#: Messages of GroupQueryAttention for q (1, Sq, D) and k (1, Sk, D) that it refuses, by Sq, Sk and D.
GROUPED = {
    "query and key must have the same sequence length when past_key is not provided": (3, 5, 8),
    "head_size must be a multiple of 8": (3, 3, 12),
}


@pytest.mark.parametrize("words", GROUPED)
def test_onnx_runtime_says_so(words: str) -> None:
    """ONNX Runtime gives the message for a call that the adapter refuses, and none for a call that works."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    import numpy as np

    from attention_conformance.impls.onnx.graph import MICROSOFT, Graph, Input

    def called(queries: int, keys: int, width: int) -> None:
        graph, lengths = Graph(), {"q": queries, "k": keys, "v": keys}
        arrays = {name: np.ones((1, length, width), np.float32) for name, length in lengths.items()}
        last, total = graph.constant("last", [keys - 1], np.int32), graph.constant("total", keys, np.int32)
        results = ("output", "present_key", "present_value")
        given, heads = ["q", "k", "v", "", "", last, total], {"num_heads": 1, "kv_num_heads": 1}
        graph.node("GroupQueryAttention", given, *results, domain=MICROSOFT, **heads)
        inputs = [Input(name, "float32", array.shape) for name, array in arrays.items()]
        model = graph.model(inputs, results[:1], 21).SerializeToString()
        onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, arrays)

    called(3, 3, 8)
    with pytest.raises(Exception, match=re.escape(words)):
        called(*GROUPED[words])


def test_a_scale_of_the_operator_is_a_float() -> None:
    """A float attribute of ONNX is float32."""
    onnx = pytest.importorskip("onnx")
    for version in (23, 24):
        attributes = onnx.defs.get_schema("Attention", version).attributes
        assert {attributes[name].type.name for name in ("scale", "softcap")} == {"FLOAT"}


def test_torch_says_so() -> None:
    """Torch gives the messages for values narrower than keys in the flash kernel, and for a second backward pass."""
    torch = pytest.importorskip("torch")
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    q = torch.ones(1, 1, 2, 8, requires_grad=True)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        (gradient,) = torch.autograd.grad(scaled_dot_product_attention(q, q, q).sum(), q, create_graph=True)
        with pytest.raises(RuntimeError, match=r"^No available kernel\."):
            scaled_dot_product_attention(q, q, q[..., :4])
    with pytest.raises(RuntimeError, match=r"^derivative for aten::\w+ is not implemented"):
        gradient.sum().backward()


def test_an_invented_quotation_is_found() -> None:
    """Words that a library never said are not in the documentation."""
    assert "the operator has no place for this" not in documentation()


def test_no_error_of_jax_becomes_unsupported() -> None:
    """An exception of ``jax.nn.dot_product_attention`` for a call that it documents stays an error."""
    assert "except" not in (ROOM / "jax/nn.py").read_text(encoding="utf-8").replace("exception", "")
