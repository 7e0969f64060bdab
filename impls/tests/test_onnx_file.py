"""A model in a file as an implementation: names, constants, shapes, types, and what is refused."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_conformance.impls.contract import ImplementationError
from attention_conformance.impls.tests.foreign import ask, implementation, judge, keywords, qkv
from attention_conformance.impls.tests.within import assert_within

pytestmark = pytest.mark.slow

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
model_files = pytest.importorskip("attention_conformance.impls.tests.model_files")
helper, types = onnx.helper, onnx.TensorProto

Build = Callable[..., str]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """A function that writes a model, and returns its path."""
    return functools.partial(model_files.write, tmp_path / "model.onnx")


def test_inputs_are_arguments_by_their_names(build: Build) -> None:
    """A model with q, k, v and output needs no declaration, and gives what it computes."""
    q, k, v = qkv()
    assert_within(ask(build()).results, q, k, v, {})


def test_names_are_said_behind_a_colon(build: Build) -> None:
    """The model's names are on the left and ours on the right; a single output needs none."""
    q, k, v = qkv()
    text = f"{build(names=('query', 'key', 'value', 'attn/out:0'))}:query=q,key=k,value=v"
    assert_within(ask(text).results, q, k, v, {})
    assert_within(ask(f"{text},attn/out:0=output").results, q, k, v, {})


def test_exchanged_names_are_wrong(build: Build) -> None:
    """The names decide: exchanging k and v gives another result."""
    q, k, v = qkv()
    text = f"{build(names=('a', 'b', 'c', 'd'))}:a=q,c=k,b=v"
    with pytest.raises(AssertionError):
        assert_within(ask(text).results, q, k, v, {})


def test_outputs_are_results(build: Build) -> None:
    """An output of weights makes return_weights a keyword; a call that requests a missing output is unsupported."""
    q, k, v = qkv()
    text = build(outputs=("weights",))
    assert keywords(text) == {"return_weights"}
    assert_within(ask(text, return_weights=True).results, q, k, v, {})
    assert ask(text, return_lse=True).text == "NotImplementedError: the model has no output for lse"


@pytest.mark.parametrize(
    ("kind", "extra"), [(types.BOOL, model_files.MASKED), (types.INT64, model_files.MASKED_BY_INTEGERS)]
)
def test_a_mask_is_given_in_the_declared_type_and_rank(build: Build, kind: int, extra: Any) -> None:
    """A mask may also be integers, with leading axes of length 1; a call without a mask gets one that is all True."""
    q, k, v = qkv()
    text = build([("mask", kind, (None,) * 4)], extra=extra)
    assert keywords(text) == {"mask"}
    mask = np.array([True, False, True, True, False])
    assert_within(ask(text, mask=mask).results, q, k, v, {"mask": mask})
    assert_within(ask(text).results, q, k, v, {})


def test_a_bias_that_is_not_given_is_zero(build: Build) -> None:
    """A bias input gets zeros in a call without a bias."""
    q, k, v = qkv()
    text = build([("bias", types.FLOAT, (None, 1, None, None))], extra=model_files.BIASED)
    bias = np.random.default_rng(1).standard_normal((2, 1, 3, 5)).astype(np.float32)
    assert_within(ask(text, bias=bias).results, q, k, v, {"bias": bias})
    assert_within(ask(text).results, q, k, v, {})


def test_an_option_may_be_an_input(build: Build) -> None:
    """A scale as an input gets the case's scale, or the default."""
    q, k, v = qkv()
    text = build([("scale", types.FLOAT, ())], scale=None)
    assert keywords(text) == {"scale"}
    assert_within(ask(text, scale=0.3).results, q, k, v, {"scale": 0.3})
    assert_within(ask(text).results, q, k, v, {})


def test_what_has_no_neutral_value_is_unsupported_where_it_is_not_given(build: Build) -> None:
    """Sinks change every result, so no value represents their absence."""
    text = f"{build([('x', types.FLOAT, (None,) * 4)], extra=[helper.make_node('Add', ['s0', 'x'], ['s1'])])}:x=sinks"
    assert ask(text).text == "NotImplementedError: the model takes sinks in every call"


def test_a_constant_restricts_to_its_cases(build: Build) -> None:
    """Only a declared scale is judged, and the default where it is the same number."""
    text = f"{build(scale=0.3)}:scale=0.3"
    q, k, v = qkv()
    assert keywords(text) == {"scale"}
    assert_within(ask(text, scale=0.3).results, q, k, v, {"scale": 0.3})
    for reply in (ask(text), ask(text, scale=0.4)):
        assert reply.text == "the model is fixed to scale=0.3"
    assert ask(f"{build()}:scale=0.5").status == "returned"


def test_a_constant_that_the_graph_does_not_hold_fails(build: Build, tmp_path: Path) -> None:
    """Declaring is_causal of a model that is not causal makes the causal cases fail."""
    build(scale=8**-0.5)
    done = judge(tmp_path, "--impl", "model.onnx:is_causal=True", "--case", "causal-square", "--case", "plain")
    assert done.returncode == 1
    assert "1 failed, 1 skipped" in done.stdout
    assert "SDPA-9 · Causal" in done.stdout


def test_a_model_with_a_wrong_scale_fails_with_its_diagnosis(build: Build, tmp_path: Path) -> None:
    """A model is diagnosed like any other implementation."""
    build(scale=1 / 8)
    done = judge(tmp_path, "--impl", "model.onnx", "--case", "plain*")
    assert done.returncode == 1
    assert "3 of 3 failures equal “the default scale applied twice: 1/D”" in done.stdout


def test_a_fixed_shape_that_does_not_fit_is_unsupported(build: Build) -> None:
    """The reason has both shapes; where the shape fits, the model runs."""
    text = build(shape=(2, 2, 3, "width"))
    q, k, v = qkv(keys=3)
    assert_within(ask(text, (q, k, v)).results, q, k, v, {})
    reply = ask(text)
    assert reply.status == "unsupported"
    assert "the model's input k has the fixed shape (2, 2, 3, any), the case's is (2, 2, 5, 4)" in reply.text


@pytest.mark.parametrize(
    "wrong",
    [
        {"v": (2, 2, 2, 4)},  # another length than k
        {"k": (2, 2, 3, 3)},  # another width than q
        {"k": (3, 2, 3, 4), "v": (3, 2, 3, 4)},  # another batch
        {"q": (2, 3, 3, 4)},  # heads that do not divide
        {"k": (2, 4, 3, 4)},  # other heads than v
    ],
)
def test_what_does_not_go_together_is_refused_by_a_model_of_fixed_shape(build: Build, wrong: dict[str, Any]) -> None:
    """ONNX Runtime refuses them, so an invalid call raises; another valid size is unsupported."""
    text = build(shape=(2, 2, 3, 4))
    arrays = [np.ones(wrong.get(name, (2, 2, 3, 4)), np.float32) for name in "qkv"]
    reply = ask(text, tuple(arrays))
    assert (reply.status, "invalid dimensions" in reply.text) == ("raised", True)
    assert ask(text, tuple(np.ones((2, 4, 3, 4), np.float32) for _ in "qkv")).status == "unsupported"


def test_another_rank_or_dtype_is_the_models_to_refuse(build: Build) -> None:
    """ONNX Runtime's exception is an error, and the right answer to an invalid input."""
    q, k, v = qkv()
    assert ask(build(), (q[0], k, v)).status == "raised"
    assert ask(build(), (q, k.astype(np.float64), v)).status == "raised"


def test_the_declared_type_is_the_dtype(build: Build) -> None:
    """No other dtype is judged."""
    assert implementation(build()).dtypes == ("float32",)


def test_the_layout_is_kept_both_ways(tmp_path: Path) -> None:
    """A model with the axes (B, S, H, D) is given them, and its output is transposed back."""
    axes = {"perm": [0, 2, 1, 3]}
    turned = [helper.make_node("Transpose", [name], [f"{name}t"], **axes) for name in "qkv"]
    nodes = [
        *turned,
        helper.make_node("Attention", ["qt", "kt", "vt"], ["o"]),
        helper.make_node("Transpose", ["o"], ["output"], **axes),
    ]
    inputs = [helper.make_tensor_value_info(name, types.FLOAT, [None] * 4) for name in "qkv"]
    output = helper.make_tensor_value_info("output", types.FLOAT, None)
    graph = helper.make_graph(nodes, "attention", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    onnx.save(model, tmp_path / "model.onnx")
    q, k, v = qkv()
    assert_within(ask(f"{tmp_path / 'model.onnx'}:layout=BSHD").results, q, k, v, {})
    assert ask(str(tmp_path / "model.onnx")).status == "raised"  # two heads are mistaken for two rows


def test_layout_profile_and_operator_are_said(build: Build) -> None:
    """All three are declared after the same colon."""
    found = implementation(f"{build()}:layout=BSHD,profile=tf32,operator=sdpa")
    assert (found.layout.value, found.profile("float32").value, found.operator) == ("BSHD", "tf32", "sdpa")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("qeury=q", "has no input 'qeury'; did you mean query"),
        ("query=qq,key=k", "query=qq: 'qq' is not a name that the suite knows"),
        ("", "has no input for q, k; its inputs are query, key, v, its outputs out; say which is which, as in"),
        ("", "as in model.onnx:query=q,key=k,out=output"),
        ("query=q", "has no input for k; .* as in model.onnx:key=k"),
        ("query=q,key=q", "both query and key are mapped to q"),
        ("query=q,key=k,key=v", "key is mapped to v, but the model has another v"),
        ("query=q,key=k,is_causal=maybe", "'maybe' is neither a value nor a name that the suite knows"),
        ("query=q,key=k,layout=SBHD", "its attributes are not understood"),
        ("query=q,key=k,operator=mhb", "'mhb' is not an operator; did you mean mha"),
        ("query", "'query' is not name=ours or option=value"),
        ("out=output,query=output", "both out and query are mapped to output"),
    ],
)
def test_what_is_said_wrongly_is_refused(build: Build, said: str, message: str) -> None:
    """A wrong declaration is refused in one sentence with the model's own names, and the nearest one."""
    path = build(names=("query", "key", "v", "out"))
    with pytest.raises(ImplementationError, match=message) as caught:
        implementation(f"{path}:{said}")
    assert "\n" not in str(caught.value)


def test_an_input_that_is_none_of_ours_is_refused(build: Build) -> None:
    """An unknown input must be declared."""
    path = build(
        [("attn_bias", types.FLOAT, (None,) * 4)], extra=[helper.make_node("Add", ["s0", "attn_bias"], ["s1"])]
    )
    with pytest.raises(ImplementationError, match=r"an unknown input 'attn_bias'.*attn_bias=bias"):
        implementation(path)


def test_a_mask_of_numbers_is_a_bias(build: Build) -> None:
    """An additive input called mask is refused, with the hint that it is our bias."""
    path = build([("mask", types.FLOAT, (None,) * 4)], extra=[helper.make_node("Add", ["s0", "mask"], ["s1"])])
    with pytest.raises(ImplementationError, match="map values added to the scores to bias"):
        implementation(path)
    assert keywords(f"{path}:mask=bias") == {"bias"}


def test_inputs_of_unequal_types_are_refused(build: Build) -> None:
    """A bias in another dtype than q has no case."""
    cast = helper.make_node("Cast", ["bias"], ["b"], to=types.FLOAT)
    added = helper.make_node("Add", ["s0", "b"], ["s1"])
    path = build([("bias", types.DOUBLE, (None,) * 4)], extra=[cast, added])
    with pytest.raises(ImplementationError, match=r"its input bias is tensor\(double\), expected tensor\(float\)"):
        implementation(path)


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x08\x0a"])
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, content: bytes) -> None:
    """A file that is no model is refused whatever its suffix."""
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(ImplementationError, match=r"model\.onnx is not an ONNX file"):
        implementation(str(tmp_path / "model.onnx"))


def test_an_operator_that_nobody_has_is_refused(build: Build) -> None:
    """The refusal has ONNX Runtime's message."""
    path = build(extra=[helper.make_node("Softmin", ["s0"], ["s1"])])
    with pytest.raises(ImplementationError, match=r"ONNX Runtime does not open model\.onnx: .*Softmin"):
        implementation(path)


@pytest.mark.parametrize(("place", "inside"), [("scale.bin", True), ("../scale.bin", False)])
def test_data_outside_the_models_folder_is_not_read(tmp_path: Path, build: Build, place: str, inside: bool) -> None:
    """Data outside the model's folder is refused; data next to the model is read."""
    model = onnx.load(build())
    (scale,) = (each for each in model.graph.initializer if each.name == "scale")
    scale.raw_data = b""
    scale.float_data.clear()
    scale.data_location = types.EXTERNAL
    for key, value in (("location", place), ("offset", "0"), ("length", "4")):
        scale.external_data.add(key=key, value=value)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / place).write_bytes(np.float32(0.5).tobytes())
    (folder / "external.onnx").write_bytes(model.SerializeToString())
    if inside:
        q, k, v = qkv()
        assert_within(ask(str(folder / "external.onnx")).results, q, k, v, {})
    else:
        with pytest.raises(ImplementationError, match=r"has data outside its folder, at \.\./scale\.bin"):
            implementation(str(folder / "external.onnx"))


def test_what_every_call_gives_has_to_be_said_or_an_input(build: Build) -> None:
    """A layer needs a number of heads, which a graph may hold as a constant."""
    path = build(names=("x_q", "w_k", "w_q", "output"), inputs=[("w_v", types.FLOAT, (None,) * 4)])
    with pytest.raises(ImplementationError, match=r"has no input for heads; .* as in model\.onnx:heads=…"):
        implementation(f"{path}:operator=mha")
    assert "heads" in keywords(f"{path}:operator=mha,heads=2")
