"""Loading: from a target's text to its function, and what the function's signature says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_conformance.impls.calls import Request, call, describe
from attention_conformance.impls.contract import Implementation, ImplementationError
from attention_conformance.impls.loading import as_called, keywords, load, load_function, nearest
from attention_conformance.impls.operators import SDPA
from attention_conformance.impls.select import plug_in
from attention_conformance.impls.tests import fakes


def test_a_function_of_a_module_is_found() -> None:
    """``module:function`` names a function of an importable module."""
    assert load("attention_conformance.impls.tests.fakes:right") is fakes.right


def test_a_function_of_a_file_is_found(tmp_path: Path) -> None:
    """``file.py:function`` names a function of a file, whose folder is importable."""
    (tmp_path / "helper_of_mine.py").write_text("answer = 42\n")
    (tmp_path / "kernel_of_mine.py").write_text("import helper_of_mine\ndef f(): return helper_of_mine.answer\n")
    assert load(f"{tmp_path / 'kernel_of_mine.py'}:f", str(tmp_path))() == 42


def test_a_misspelt_function_names_the_nearest(tmp_path: Path) -> None:
    """The refusal names the nearest functions of the module."""
    with pytest.raises(ImplementationError, match=r"no function 'rigth'; did you mean right"):
        load("attention_conformance.impls.tests.fakes:rigth")


def test_a_file_that_does_not_import_is_refused(tmp_path: Path) -> None:
    """An exception at import is reported with its type and text."""
    (tmp_path / "broken_kernel.py").write_text("import nothing_of_this_name\n")
    with pytest.raises(ImplementationError, match="ModuleNotFoundError"):
        load(f"{tmp_path / 'broken_kernel.py'}:f")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """A path without a file is reported with the place where it was looked for."""
    with pytest.raises(ImplementationError, match="no file"):
        load(f"{tmp_path / 'absent.py'}:f")


def test_keywords_are_the_recognised_ones() -> None:
    """Only the contract's keywords count as features."""

    def attention(q: Any, k: Any, v: Any, mask: Any = None, *, scale: Any = None, dropout: float = 0.0) -> None: ...

    assert keywords(attention) == {"mask", "scale"}


def test_any_keyword_means_all_of_them() -> None:
    """A function with **kwargs is tested on every feature."""

    def attention(q: Any, k: Any, v: Any, **options: Any) -> None: ...

    assert keywords(attention) == set(SDPA.keywords)


def test_too_few_arguments_are_refused() -> None:
    """A function that cannot take q, k, v is refused."""

    def attention(x: Any) -> None: ...

    with pytest.raises(ImplementationError, match="takes 1 positional"):
        keywords(attention)


def test_an_unknown_required_argument_is_refused() -> None:
    """A required argument that is no keyword is refused with the nearest keyword."""

    def attention(q: Any, k: Any, v: Any, *, casual_offset: int) -> None: ...

    with pytest.raises(ImplementationError, match="did you mean causal_offset"):
        keywords(attention)


def test_nearest_lists_few_names_where_none_is_near() -> None:
    """If no name is near, the known names are listed, and a long list is cut."""
    assert nearest("zzz", ["a", "b"]) == "; known: a, b"
    assert "100 in all" in nearest("zzz", [f"name{i}" for i in range(100)])


def test_a_deferred_function_is_loaded_when_it_is_used() -> None:
    """A deferred function has its name before it is loaded; a call or a question about its keywords loads it."""
    record = Implementation("later", "attention_conformance.impls.tests.deferred_target:attention", deferred="numpy")
    function = load_function(record)
    assert (function.__module__, function.__qualname__) == (
        "attention_conformance.impls.tests.deferred_target",
        "attention",
    )
    assert "attention_conformance.impls.tests.deferred_target" not in sys.modules
    assert load_function(record) is function
    assert keywords(function) == {"scale"}
    assert "attention_conformance.impls.tests.deferred_target" in sys.modules
    assert function(1, 2, 3, scale=4) == (1, 2, 3, 4)
    assert function.dtypes == ("float32",)
    with pytest.raises(AttributeError):
        _ = function.nothing


def test_a_deferred_function_that_is_not_there_is_an_error_when_it_is_used() -> None:
    """The error is the one that a function that is not deferred raises at once."""
    with pytest.raises(ImplementationError, match="has no function 'nothing'"):
        load_function(Implementation("later", "attention_conformance.impls.tests.fakes:nothing", deferred="numpy"))(
            1, 2, 3
        )


def test_an_object_that_cannot_be_hashed_is_a_function_too(tmp_path: Path) -> None:
    """Data about a plug-in is kept by its name, so it need not be hashable."""
    lines = (
        "class It:",
        "    __hash__ = None",
        "    def __call__(self, q, k, v):",
        "        return v",
        "attention = It()",
    )
    (tmp_path / "unhashable.py").write_text("\n".join(lines))
    function = load_function(plug_in(f"{tmp_path}/unhashable.py:attention"))
    assert function(1, 2, 3) == 3


#: A torch module, whose ``__call__`` is ``(*args, **kwargs)``.
MODULE = """
import torch


class Attention(torch.nn.Module):
    head_widths = (4,)

    def forward(self, q, k, v, *, is_causal=False):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)


attention = Attention()
compiled = torch.compile(attention)
"""


@pytest.mark.parametrize("name", ["attention", "compiled"])
def test_a_module_of_torch_has_the_keywords_of_its_forward(tmp_path: Path, name: str) -> None:
    """A torch module has the keywords and attributes of its ``forward``, also when compiled with torch.compile."""
    (tmp_path / f"module_{name}.py").write_text(MODULE)
    described = describe(plug_in(f"{tmp_path}/module_{name}.py:{name}@torch"))
    assert described.keywords == {"is_causal"}
    assert not described.accepts_anything
    assert described.attributes == {"head_widths": (4,)}


def test_a_module_of_torch_is_called_and_differentiated(tmp_path: Path) -> None:
    """A torch module is called and differentiated as a function of its parameters."""
    (tmp_path / "module_called.py").write_text(MODULE)
    q = np.random.default_rng(0).standard_normal((1, 1, 3, 4)).astype(np.float32)
    given = dict.fromkeys("qkv", q)
    for gradients, results in (("", {"output"}), ("+gradients", {"grad_q", "grad_k", "grad_v"})):
        arrays = given | ({"grad_output": q} if gradients else {})
        plugged = plug_in(f"{tmp_path}/module_called.py:attention@torch{gradients}")
        reply = call(plugged, Request("cpu", arrays, {"is_causal": True}))
        assert reply.results.keys() == results, reply.text
        assert describe(plugged).keywords >= {"is_causal"}


def test_a_module_that_tells_no_signature_is_left_as_it_is() -> None:
    """Such a module may be a traced one, or one whose ``forward`` is a C function."""
    torch = pytest.importorskip("torch")

    class Silent(torch.nn.Module):  # type: ignore[misc, name-defined]
        forward = min

    module = Silent()
    assert as_called(module, "silent") is module


def test_a_class_is_refused(tmp_path: Path) -> None:
    """A class is callable, but makes an object instead of a result."""
    (tmp_path / "module_class.py").write_text(MODULE)
    with pytest.raises(ImplementationError, match=r"module_class.py:Attention is a class: plug in an instance of it"):
        describe(plug_in(f"{tmp_path}/module_class.py:Attention@torch"))
