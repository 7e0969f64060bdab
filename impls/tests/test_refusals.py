"""Refusals of the built-in adapters: beside each stand the library's words that justify it, as the library has them."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import re
from pathlib import Path

import pytest

import attention_conformance.impls as room

ROOM = Path(room.__path__[0])

#: The adapters of libraries; the others are functions of our own, of which no library says anything.
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
    """What the installed libraries say of themselves, on one line; "" without any."""
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
    """Of each folder of a framework; scripts refuse as adapters do, a model by its inputs, and rings are to plug in."""
    files = {
        path.relative_to(ROOM).as_posix() for each in ("torch", "jax", "onnx") for path in (ROOM / each).glob("*.py")
    }
    refusing = {path for path in files if refusals(path)}
    others = {path for path in refusing if path.endswith(("/script.py", "/rings.py"))}
    assert refusing == {*ADAPTERS, "onnx/file.py"} | others


@pytest.mark.parametrize("path", ADAPTERS)
def test_a_refusal_is_justified_beside_it(path: str) -> None:
    """By a quotation of the documentation, or of what the library itself says when it is asked (``says``)."""
    assert not [number for number, comment in refusals(path) if not re.match(r'# (says )?"', comment)]


@pytest.mark.parametrize("path", ADAPTERS)
def test_the_words_are_those_of_the_library(path: str) -> None:
    """As the installed version documents them."""
    if not all(importlib.util.find_spec(name) for name in ("torch", "jax", "onnx", "onnxruntime")):
        pytest.skip("not every library is installed")
    quoted = [
        (number, words)
        for number, comment in refusals(path)
        if not comment.startswith("# says")
        for words in re.findall(r'"([^"]+)"', comment)
    ]
    assert not [each for each in quoted if each[1] not in documentation()]


def test_an_invented_quotation_is_found() -> None:
    """It is in no documentation."""
    assert "the operator has no place for this" not in documentation()


def test_no_error_of_jax_becomes_unsupported() -> None:
    """What ``jax.nn.dot_product_attention`` raises on a call that it documents is the call's own."""
    assert "except" not in (ROOM / "jax/nn.py").read_text(encoding="utf-8").replace("exception", "")
