"""The rooms' text for their arrays and calls: it does the same as the adapters."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attention_conformance.impls.contract import Call, Framework
from attention_conformance.impls.memory_layouts import LAYOUTS, lay_out
from attention_conformance.impls.script import WIDTH, Given, Snippet
from attention_conformance.impls.select import builtin

pytestmark = pytest.mark.slow

ROOMS = ("numpy", "torch", "jax", "onnx")
SHAPES = (("q", (2, 4, 5, 8)), ("k", (2, 2, 7, 8)), ("v", (2, 2, 7, 8)))


def room(name: str) -> Any:
    """The module ``script`` of a room."""
    return importlib.import_module(f"attention_conformance.impls.{name}.script")


def call(*arrays: str, dtype: str = "float32", **options: Any) -> Call:
    """A call with grouped heads, with masks and biases in full shape."""
    shapes = [(name, (2,) if name in ("kv_lengths", "causal_offset") else (2, 4, 5, 7)) for name in arrays]
    return Call(dtype, "cpu", (*SHAPES, *shapes), tuple(sorted(options.items())))


def attention_of(snippet: Snippet) -> str:
    """The body of the function ``attention`` on one line, as ``ast`` prints it."""
    functions = [node for node in ast.parse(snippet.definitions).body if isinstance(node, ast.FunctionDef)]
    return "; ".join(ast.unparse(statement) for statement in functions[-1].body)


def test_every_builtin_implementation_can_be_written() -> None:
    """Each has a writer in its room, under its own name, or is the autograd form of a function that has one."""
    written = {name for each in ROOMS for name in room(each).CALLS}
    known = [each for name, each in builtin().items() if name in written]
    functions = {(each.framework, each.target) for each in known}
    functions |= {(Framework(each), target) for each in ("torch",) for target in room(each).FUNCTIONS}
    others = [each for name, each in builtin().items() if name not in written]
    assert written <= set(builtin())
    assert [each.name for each in others if (each.framework, each.target) not in functions] == []


def test_no_framework_is_imported_to_write() -> None:
    """Scripts are text, so a process without a framework can write them."""
    names = ", ".join(f"attention_conformance.impls.{each}.script" for each in ROOMS)
    code = f"import sys, {names}; print([n for n in ('torch', 'jax', 'onnx', 'onnxruntime') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def ran(*lines: str, **names: Any) -> dict[str, Any]:
    """The names that are defined after the lines of a script were run."""
    exec("\n".join(lines), names)  # noqa: S102  (the text under test)
    return names


# Arrays.


def sample(dtype: str) -> np.ndarray:
    """An array (2, 3, 4, 5) whose third axis repeats its first entry."""
    values = np.random.default_rng(0).standard_normal((2, 3, 1, 5)).repeat(4, axis=2)
    return values > 0 if dtype == "bool" else values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def given(array: np.ndarray) -> Given:
    """The description of the sample that a script is given."""
    return Given("q", str(array.dtype), array.shape, (2,))


def put(terms: Any, array: np.ndarray, memory: str) -> Any:
    """The array that a script makes of the sample."""
    carried = array.astype(np.float32) if array.dtype == ml_dtypes.bfloat16 else array.copy()
    return ran(*terms.imports, *terms.put([given(array)], memory, "cpu"), q=carried, np=np, ml_dtypes=ml_dtypes)["q"]


@pytest.mark.parametrize("memory", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool"])
def test_numpy_arrays_are_laid_out_as_the_suite_does(memory: str, dtype: str) -> None:
    """Elements and strides are the same."""
    array = sample(dtype)
    made, wanted = put(room("numpy").TERMS, array, memory), lay_out(array, memory)
    assert made.strides == wanted.strides
    assert made.dtype == wanted.dtype
    assert made.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("memory", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool"])
def test_torch_tensors_are_laid_out_as_the_suite_does(memory: str, dtype: str) -> None:
    """Elements and strides are those of the tensor that the suite passes."""
    torch = pytest.importorskip("torch")
    arrays = importlib.import_module("attention_conformance.impls.torch.arrays")
    array = sample(dtype)
    made, wanted = put(room("torch").TERMS, array, memory), arrays.put(lay_out(array, memory), "cpu")
    assert made.stride() == wanted.stride()
    assert made.dtype == wanted.dtype
    assert torch.equal(made, wanted)


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_guards_and_gaps_hold_nan(name: str) -> None:
    """Memory before, behind and between the elements is NaN, as in the suite."""
    pytest.importorskip(name)
    array = sample("float32")
    guarded = np.asarray(put(room(name).TERMS, array, "guarded"))
    before = np.lib.stride_tricks.as_strided(guarded.reshape(-1)[:1], (65,), (-4,))[1:]
    behind = np.lib.stride_tricks.as_strided(guarded.reshape(-1)[-1:], (65,), (4,))[1:]
    sliced = np.asarray(put(room(name).TERMS, array, "sliced"))
    between = np.lib.stride_tricks.as_strided(sliced, (*sliced.shape[:-1], 9), (*sliced.strides[:-1], 4))[..., 1::2]
    assert np.isnan(before).all()
    assert np.isnan(behind).all()
    assert np.isnan(between).all()


@pytest.mark.parametrize(
    ("dtype", "wanted"), [("float32", "float32"), ("float64", "float64"), ("bfloat16", "bfloat16"), ("bool", "bool")]
)
def test_jax_arrays_keep_their_dtype(dtype: str, wanted: str) -> None:
    """JAX truncates 64-bit arrays unless x64 is enabled; a script enables it for float64 q."""
    jax = pytest.importorskip("jax")
    before = jax.config.jax_enable_x64
    try:
        assert str(put(room("jax").TERMS, sample(dtype), "contiguous").dtype) == wanted
    finally:
        jax.config.update("jax_enable_x64", before)


def test_jax_integers_keep_their_dtype_in_float32_calls() -> None:
    """Key lengths are int64 for plug-ins, while everything else stays in 32 bits."""
    jax = pytest.importorskip("jax")
    arrays = [Given("q", "float32", (3,)), Given("kv_lengths", "int64", (2,))]
    terms = room("jax").TERMS
    lines = [*terms.imports, *terms.put(arrays, "contiguous", "cpu")]
    names = ran(*lines, q=np.zeros(3, np.float32), kv_lengths=np.array([3, 1]))
    assert str(names["kv_lengths"].dtype) == "int64"
    assert not jax.config.jax_enable_x64


def test_ort_values_hold_the_array() -> None:
    """A plug-in with @onnxruntime is given OrtValues."""
    pytest.importorskip("onnxruntime")
    array = sample("float32")
    value = put(room("onnx").TERMS, array, "inner")
    assert np.array_equal(getattr(value, room("onnx").TERMS.method)(), array)


#: Python cannot read an OrtValue of bfloat16, so none is written.
CONTENTS = [
    (name, dtype)
    for name in ROOMS
    for dtype in ("float32", "bfloat16", "bool")
    if (name, dtype) != ("onnx", "bfloat16")
]


@pytest.mark.parametrize(("name", "dtype"), CONTENTS)
def test_the_content_of_an_array_is_its_bytes(name: str, dtype: str) -> None:
    """Bytes are compared, so that NaN equals NaN, and −0 does not equal 0."""
    pytest.importorskip({"onnx": "onnxruntime"}.get(name, name))
    array, terms = sample(dtype), room(name).TERMS
    made = put(terms, array, "transposed")
    assert ran(*terms.imports, f"content = {terms.content}", a=made, np=np)["content"] == array.tobytes()


def test_ort_values_of_bfloat16_are_refused() -> None:
    """The results of bfloat16 could not be read."""
    with pytest.raises(NotImplementedError):
        room("onnx").TERMS.put([given(sample("bfloat16"))], "contiguous", "cpu")


# Calls.


@pytest.mark.parametrize(
    ("name", "given", "wanted"),
    [
        ("torch-sdpa", call(), "return scaled_dot_product_attention(q, k, v, enable_gqa=True)"),
        ("torch-sdpa", call(scale=0.0), "return scaled_dot_product_attention(q, k, v, scale=0.0, enable_gqa=True)"),
        (
            "torch-sdpa",
            call("mask", is_causal=False),
            "return scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)",
        ),
        (
            "torch-sdpa",
            call(is_causal=True, causal_offset=0),
            "return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)",
        ),
        (
            "torch-sdpa",
            call(is_causal=True, causal_offset=2),
            "return scaled_dot_product_attention(q, k, v, attn_mask=causal_lower_right(5, 7), enable_gqa=True)",
        ),
        (
            "torch-sdpa-math",
            call("bias"),
            "with sdpa_kernel(SDPBackend.MATH):\n"
            "    return scaled_dot_product_attention(q, k, v, attn_mask=bias, enable_gqa=True)",
        ),
    ],
)
def test_sdpa_is_called_as_the_adapter_calls_it(name: str, given: Call, wanted: str) -> None:
    """Mask and bias become attn_mask; offsets are 0 or bottom right; only given options are written."""
    assert attention_of(room("torch").CALLS[name](given)) == wanted


@pytest.mark.parametrize(
    "given", [call("mask", "bias"), call(is_causal=True, causal_offset=1), call("causal_offset", is_causal=True)]
)
def test_what_sdpa_does_not_express_is_not_written(given: Call) -> None:
    """The adapter refuses the same calls."""
    with pytest.raises(NotImplementedError):
        room("torch").CALLS["torch-sdpa"](given)


def test_flex_attention_gets_functions_of_the_indices() -> None:
    """Softcap and bias make the score, and everything else the mask."""
    every = call("mask", "bias", "kv_lengths", is_causal=True, window=(2, None), softcap=3.0, return_lse=True)
    text = attention_of(room("torch").CALLS["torch-flex"](every))
    assert "score = 3.0 * torch.tanh(score / 3.0)" in text
    assert "score = score + bias[b, h, i, j]" in text
    assert "return mask[b, h, i, j] & (j <= i) & (j >= i - 2) & (j < kv_lengths[b])" in text
    assert text.endswith("return (output, aux.lse)")


def test_flex_attention_alone_gets_none() -> None:
    """A call without options has no functions."""
    wanted = "return flex_attention(q, k, v, enable_gqa=True)"
    assert attention_of(room("torch").CALLS["torch-flex"](call())) == wanted


def test_jax_nn_is_called_as_the_adapter_calls_it() -> None:
    """Lengths are int32, an open side is as long as all keys and rows, and residuals give lse."""
    shapes = (("q", (2, 5, 4, 8)), ("k", (2, 7, 2, 8)), ("v", (2, 7, 2, 8)), ("kv_lengths", (2,)))
    given = Call("float32", "cpu", shapes, (("return_lse", True), ("window", (None, 1))))
    text = attention_of(room("jax").CALLS["jax-nn"](given))
    assert "local_window_size=(12, 1)" in text
    assert "key_value_seq_lengths=kv_lengths.astype(jnp.int32)" in text
    assert text.endswith("return (output, lse.swapaxes(1, 2))")


def test_jit_takes_booleans_as_static_and_numbers_as_arguments() -> None:
    """The script follows attention_conformance.impls.jax.prepare, and omits options that are None."""
    snippet = room("jax").CALLS["jax-jit"](call(is_causal=True, scale=0.5, softcap=None))
    assert snippet.definitions == 'jitted = jax.jit(attention, static_argnames=["is_causal"])'
    assert snippet.call() == "jitted(q, k, v, is_causal=True, scale=0.5)"


BSHD = (("q", (2, 5, 2, 8)), ("k", (2, 5, 2, 8)), ("v", (2, 5, 2, 8)))


@pytest.mark.parametrize(
    ("builder", "given"),
    [
        ("attention_conformance.impls.onnx.attention:attention23", call()),
        (
            "attention_conformance.impls.onnx.attention:attention23",
            call("mask", is_causal=True, scale=0.3, softcap=2.0, return_weights=True),
        ),
        ("attention_conformance.impls.onnx.attention:attention24", call("bias", "kv_lengths", dtype="float16")),
        (
            "attention_conformance.impls.onnx.contrib:multi_head",
            Call("float32", "cpu", (*BSHD, ("mask", (2, 1, 1, 5)))),
        ),
        (
            "attention_conformance.impls.onnx.contrib:multi_head",
            Call("float16", "cpu", (*BSHD, ("kv_lengths", (2,))), (("scale", 0.0),)),
        ),
        (
            "attention_conformance.impls.onnx.contrib:group_query",
            Call("float32", "cpu", BSHD, (("is_causal", True), ("window", (2, 0)))),
        ),
        (
            "attention_conformance.impls.onnx.contrib:group_query",
            Call("float32", "cpu", BSHD, (("return_weights", True),)),
        ),
    ],
)
def test_a_model_is_written_as_it_is_built(builder: str, given: Call) -> None:
    """The statements build exactly the model that the implementation runs."""
    pytest.importorskip("onnx")
    from attention_conformance.impls.loading import load
    from attention_conformance.impls.onnx.graph import build
    from attention_conformance.impls.onnx.model_source import indented, statements

    built = build(load(builder), given)
    source = "\n".join(["def model():", *indented(statements(built))])
    names = ran("from onnx import TensorProto, helper, numpy_helper", source, np=np)
    wanted = type(built)()
    wanted.CopyFrom(built)
    used = {node.domain for node in built.graph.node}
    for index in reversed([i for i, o in enumerate(built.opset_import) if o.domain not in ("", *used)]):
        del wanted.opset_import[index]  # a domain that no node uses is not written
    assert names["model"]() == wanted
    assert max(map(len, source.splitlines())) <= WIDTH
