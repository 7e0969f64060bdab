"""Calls written by hand: the best known way to call each library, which the built-in implementations are timed against.

A function takes q, k and v as NumPy arrays (B, H, S, D) in float32, and whether to be causal.  It does everything that
is done once, and returns the call, whose result is computed when it returns, and a function that reads that result as
(B, H, S, D).  Nothing of the implementations is used here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from attention_conformance.impls.process import threads

#: The call, and a function that turns its result into a NumPy array.
Way = tuple[Callable[[], Any], Callable[[Any], np.ndarray]]

#: IR versions that came with the opsets, so that older versions of ONNX Runtime read the models.
IR_VERSIONS = {18: 8, 21: 10, 23: 11}


def torch_sdpa(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool) -> Way:
    """``torch.nn.functional.scaled_dot_product_attention`` on contiguous tensors."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    a, b, c = (torch.from_numpy(each) for each in (q, k, v))
    return lambda: scaled_dot_product_attention(a, b, c, is_causal=causal), lambda found: found.numpy()


def torch_flash(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool) -> Way:
    """The same with the flash kernel forced, which needs a context around each call."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    dispatched, read = torch_sdpa(q, k, v, causal)

    def run() -> Any:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return dispatched()

    return run, read


def jax_nn(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool) -> Way:
    """``jax.nn.dot_product_attention`` under ``jax.jit``, on arrays of the device in its own layout (B, S, H, D)."""
    import jax

    a, b, c = (jax.device_put(np.ascontiguousarray(each.swapaxes(1, 2))) for each in (q, k, v))
    program = jax.jit(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=causal))
    return lambda: program(a, b, c).block_until_ready(), lambda found: np.asarray(found).swapaxes(1, 2)


def jax_plain(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool) -> Way:
    """Product, softmax and product under ``jax.jit``, without care for special rows or values."""
    import jax
    import jax.numpy as jnp

    def attention(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("bhid,bhjd->bhij", q / math.sqrt(q.shape[3]), k)
        if causal:
            scores = jnp.where(jnp.tril(jnp.ones(scores.shape[2:], bool)), scores, -jnp.inf)
        return jnp.einsum("bhij,bhjd->bhid", jax.nn.softmax(scores), v)

    a, b, c = (jax.device_put(each) for each in (q, k, v))
    program = jax.jit(attention)
    return lambda: program(a, b, c).block_until_ready(), np.asarray


def onnx_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool) -> Way:
    """One Attention node of opset 23."""
    from onnx import helper

    node = helper.make_node("Attention", ["q", "k", "v"], ["output"], is_causal=int(causal))
    return _session([node], {"q": q, "k": k, "v": v}, q.shape, 23), lambda found: found.numpy()


def onnx_plain(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool) -> Way:
    """Product, softmax and product in opset 18; the causal mask is a constant that is added to the scores."""
    from onnx import helper, numpy_helper

    constants = [numpy_helper.from_array(np.array(1 / math.sqrt(q.shape[3]), np.float32), "scale")]
    nodes = [
        helper.make_node("Transpose", ["k"], ["turned"], perm=(0, 1, 3, 2)),
        helper.make_node("MatMul", ["q", "turned"], ["products"]),
        helper.make_node("Mul", ["products", "scale"], ["scores"]),
    ]
    if causal:
        hidden = np.triu(np.full((q.shape[2], k.shape[2]), -np.inf, np.float32), 1)
        constants.append(numpy_helper.from_array(hidden, "hidden"))
        nodes.append(helper.make_node("Add", ["scores", "hidden"], ["shown"]))
    nodes += [
        helper.make_node("Softmax", ["shown" if causal else "scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "v"], ["output"]),
    ]
    run = _session(nodes, {"q": q, "k": k, "v": v}, q.shape, 18, constants)
    return run, lambda found: found.numpy()


def ort_multi_head(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool) -> Way:
    """One MultiHeadAttention node of ONNX Runtime, with inputs and output in its own layout (B, S, H · D)."""
    from onnx import helper

    batch, heads, length, width = q.shape
    flat = {name: each.swapaxes(1, 2).reshape(batch, length, -1) for name, each in zip("qkv", (q, k, v), strict=True)}
    node = helper.make_node(
        "MultiHeadAttention",
        list(flat),
        ["output"],
        domain="com.microsoft",
        num_heads=heads,
        unidirectional=int(causal),
    )
    run = _session([node], flat, (batch, length, heads * width), 21)
    return run, lambda found: found.numpy().reshape(batch, length, heads, width).swapaxes(1, 2)


def _session(
    nodes: list[Any], inputs: dict[str, np.ndarray], shape: tuple[int, ...], opset: int, constants: Any = ()
) -> Callable[[], Any]:
    """The call of a session through one binding, with the same memory for the output every time."""
    import onnxruntime
    from onnx import TensorProto, helper

    declared = [helper.make_tensor_value_info(n, TensorProto.FLOAT, each.shape) for n, each in inputs.items()]
    returned = helper.make_tensor_value_info("output", TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "by_hand", declared, [returned], initializer=list(constants))
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSIONS[opset])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads.wanted()  # it reads no variable that the other libraries read
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    output = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float32))
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(a)) for name, a in inputs.items()}
    binding = session.io_binding()
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_ortvalue_output("output", output)

    def run() -> Any:
        session.run_with_iobinding(binding)
        return output

    return run
