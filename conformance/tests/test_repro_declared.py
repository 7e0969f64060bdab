"""Calls of plugged-in functions by the parameters that their files declare, and calls that need an adapter."""

from __future__ import annotations

from pathlib import Path

import pytest

from attention_conformance.conformance.repro.declared import arguments
from attention_conformance.impls.contract import Call, Implementation

PACKED = (
    ("q", (8, 2, 4)),
    ("k", (8, 2, 4)),
    ("v", (8, 2, 4)),
    ("cu_seqlens_q", (3,)),
    ("cu_seqlens_k", (3,)),
)
PAGED = (
    ("q", (8, 2, 4)),
    ("k_cache", (5, 4, 2, 4)),
    ("v_cache", (5, 4, 2, 4)),
    ("cu_seqlens_q", (3,)),
    ("block_table", (2, 3)),
    ("kv_lengths", (2,)),
)
MAXIMA = (("max_seqlen_k", 5), ("max_seqlen_q", 5))
SDPA = (("q", (1, 2, 5, 4)), ("k", (1, 2, 7, 4)), ("v", (1, 2, 7, 4)))


def told(folder: Path, source: str, call: Call) -> tuple[str, ...] | None:
    """The arguments for a function ``f`` of a file."""
    (folder / "own.py").write_text(source, encoding="utf-8")
    return arguments(Implementation("f", f"{folder / 'own.py'}:f", operator=call.operator), call)


def sdpa(*options: tuple[str, object], shapes: tuple = SDPA) -> Call:
    """A call of sdpa."""
    return Call("float32", "cpu", shapes, options)


def varlen(*options: tuple[str, object]) -> Call:
    """A call of varlen with its maxima."""
    return Call("float32", "cpu", PACKED, (*options, *MAXIMA), "varlen")


def paged(*options: tuple[str, object], shapes: tuple = PAGED) -> Call:
    """A call of paged with its maxima."""
    return Call("float32", "cpu", shapes, (*options, *MAXIMA), "paged")


def merge(operator: str = "merge") -> Call:
    """A call of a merge, or of its gradients."""
    shapes = (("outputs", (2, 1, 2, 5, 4)), ("lses", (2, 1, 2, 5)), ("grad_output", (1, 2, 5, 4)))
    return Call("float32", "cpu", shapes[: 2 if operator == "merge" else 3], (), operator)


def test_arrays_are_given_by_place_and_options_by_name(tmp_path: Path) -> None:
    """Arrays are passed by position and options by name, as anyone would write the call."""
    call = sdpa(("is_causal", True), shapes=(*SDPA, ("mask", (5, 7))))
    assert told(tmp_path, "def f(q, k, v, *, mask=None, is_causal=False): ...", call) == (
        "q",
        "k",
        "v",
        "mask=mask",
        "is_causal=True",
    )


def test_parameters_in_another_order_are_given_by_place_up_to_there(tmp_path: Path) -> None:
    """Arrays are passed by position in the function's own order, up to the first parameter that is no array."""
    assert told(tmp_path, "def f(q, v, k): ...", sdpa()) == ("q", "v", "k")
    assert told(tmp_path, "def f(q, scale=1, k=None, v=None): ...", sdpa()) == ("q", "k=k", "v=v")


def test_what_is_known_by_name_alone_is_given_by_name(tmp_path: Path) -> None:
    """Keyword-only parameters and ** are passed by name."""
    assert told(tmp_path, "def f(*, q, k, v): ...", sdpa()) == ("q=q", "k=k", "v=v")
    assert told(tmp_path, "def f(**arrays): ...", sdpa()) == ("q=q", "k=k", "v=v")


def test_a_function_of_packs_is_called_as_it_is(tmp_path: Path) -> None:
    """A function of packs gets exactly its parameters, with a maximum if it takes one."""
    contract = "def f(q, k, v, cu_seqlens_q, cu_seqlens_k, *, max_seqlen_q, is_causal=False): ..."
    places = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k")
    assert told(tmp_path, contract, varlen(("is_causal", True))) == (*places, "is_causal=True", "max_seqlen_q=5")


def test_names_of_other_libraries_are_those_of_the_function(tmp_path: Path) -> None:
    """Other libraries' names are used, and a required parameter gets the value that the adapter gives."""
    flash = "def f(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale, causal): ..."
    found = told(tmp_path, flash, varlen(("is_causal", True)))
    assert found is not None
    assert set(found[5:]) == {"causal=True", "max_seqlen_q=5", "max_seqlen_k=5", "softmax_scale=0.5"}


def test_a_paged_function_is_called_as_it_is(tmp_path: Path) -> None:
    """A paged function gets its arguments by position, with the names of vLLM."""
    source = "def f(q, k_cache, v_cache, cu_seqlens_q, block_tables, seq_lens, max_seqlen_q=0): ..."
    assert told(tmp_path, source, paged()) == (
        "q",
        "k_cache",
        "v_cache",
        "cu_seqlens_q",
        "block_table",
        "kv_lengths",
        "max_seqlen_q=5",
    )


def test_a_merge_in_the_terms_of_the_operator_is_called_as_it_is(tmp_path: Path) -> None:
    """A merge and its gradients are called directly; a function that merges two parts needs the adapter."""
    assert told(tmp_path, "def f(outputs, lses): ...", merge()) == ("outputs", "lses")
    backward = told(tmp_path, "def f(outputs, lses, grad_output, *, grad_lse=None): ...", merge("merge_grad"))
    assert backward == ("outputs", "lses", "grad_output")
    assert told(tmp_path, "def f(v_a, s_a, v_b, s_b): ...", merge()) is None


@pytest.mark.parametrize(
    "source",
    [
        "def f(q, k, v): ...\nf = wrapped(f)",
        "@decorated\ndef f(q, k, v): ...",
        "from other import f",
        "def f(q, k, v): ...\nfor each in (f,):\n    setattr(each, 'layout', 'BSHD')",
        "class f:\n    def __call__(self, q, k, v): ...",
        "if True:\n    def f(q, k, v): ...",
        "def f(q, k, v:",
    ],
    ids=["bound again", "decorated", "imported", "set from outside", "class", "not at the top", "no Python"],
)
def test_a_file_that_does_not_tell_is_left_to_the_adapter(tmp_path: Path, source: str) -> None:
    """A file whose function may have other parameters is left to the adapter."""
    assert told(tmp_path, source, sdpa()) is None


def test_a_compiled_function_keeps_its_parameters(tmp_path: Path) -> None:
    """A function compiled by jax.jit, or by a partial of it, keeps its parameters."""
    for decorator in ("jax.jit", "functools.partial(jax.jit, static_argnames=['is_causal'])"):
        assert told(tmp_path, f"@{decorator}\ndef f(q, k, v): ...", sdpa()) == ("q", "k", "v")


def test_a_module_is_left_to_the_adapter() -> None:
    """A function that is found by import is left to the adapter, and nothing is imported."""
    assert arguments(Implementation("f", "package.kernels:f"), sdpa()) is None


@pytest.mark.parametrize(
    ("source", "call"),
    [
        ("def f(q, k_cache, v_cache, cu_seqlens_q, block_table, seqused_k): ...\nf.cache_layout = 'HND'", paged()),
        ("def f(q, k_cache, v_cache, block_table, cache_seqlens): ...", paged()),
        ("def f(q, k_cache, v_cache, cu_seqlens_q, cu_seqlens_k, block_table): ...", paged()),
        ("def f(q, k_cache, v_cache, cu_seqlens_q, block_table, kv_lengths, out): ...", paged()),
        (
            "def f(q, k_cache, v_cache, cu_seqlens_q, block_table, kv_lengths, k_descale=None): ...",
            paged(shapes=(*PAGED, ("k_scale", (1, 1, 2, 1)))),
        ),
        ("def f(q, k, v, cu_seqlens_q, cu_seqlens_k, return_attn_probs=False): ...", varlen(("return_lse", True))),
        ("def f(q, k, v, cu_seqlens_q, cu_seqlens_k, return_aux=None): ...", varlen(("return_lse", True))),
    ],
    ids=["layout", "by queries", "boundaries", "out", "descale", "three results", "auxiliary"],
)
def test_what_has_to_be_converted_is_left_to_the_adapter(tmp_path: Path, source: str, call: Call) -> None:
    """Layouts, calls by number of queries, other arrays, output memory and dropped results need the adapter."""
    assert told(tmp_path, source, call) is None
