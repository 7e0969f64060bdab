"""Implementations that each misbehave in one way, and are correct where they return: for tests of the machinery.

A framework is imported only when a function is called with its arrays.
"""

from __future__ import annotations

import ctypes
import functools
import locale
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from typing import Any

import numpy as np

from attention_conformance.impls.process.state import thread_settings
from attention_conformance.impls.tests.fakes import right

#: FE_UPWARD of <fenv.h> on x86-64 and on aarch64.
FE_UPWARD = 0x800 if os.uname().machine == "x86_64" else 0x400000

#: Bytes that a leak and a hog add each time: fewer than are taken between two looks.
LEAK, STEP = 48 << 20, 16 << 20

_C: Any = ctypes.CDLL(None)
_KEPT: list[Any] = []


def segfaults(q: Any, k: Any, v: Any) -> Any:
    """Reads an invalid address."""
    ctypes.string_at(0)


def exits_at_once(q: Any, k: Any, v: Any) -> Any:
    """Ends its process silently."""
    os._exit(0)


def is_killed(q: Any, k: Any, v: Any) -> Any:
    """Is killed as the system kills a process when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def interrupts(q: Any, k: Any, v: Any) -> Any:
    """Raises KeyboardInterrupt, as Ctrl-C does."""
    raise KeyboardInterrupt


def spins(q: Any, k: Any, v: Any) -> Any:
    """Computes forever."""
    while True:
        pass


def waits_for_itself(q: Any, k: Any, v: Any) -> Any:
    """Takes a lock twice."""
    lock = threading.Lock()
    with lock, lock:
        return right(q, k, v)


def hogs(q: Any, k: Any, v: Any) -> Any:
    """Takes memory endlessly."""
    while True:
        _KEPT.append(np.ones(STEP, np.uint8))
        time.sleep(0.01)  # so that the test machine survives a limit that does not work


def hogs_in_a_program(q: Any, k: Any, v: Any) -> Any:
    """Starts a program that takes memory endlessly."""
    lines = "import time", "kept = []", "while True:", f"  kept.append(b'x' * {STEP})", "  time.sleep(0.01)"
    return subprocess.call([sys.executable, "-c", "\n".join(lines)])


def leaks(q: Any, k: Any, v: Any) -> Any:
    """Keeps some memory of each call."""
    _KEPT.append(np.ones(LEAK, np.uint8))
    return right(q, k, v)


def prints_for_ever(q: Any, k: Any, v: Any) -> Any:
    """Prints endlessly."""
    while True:
        os.write(1, b"z" * (1 << 20))


def prints_a_line(q: Any, k: Any, v: Any) -> Any:
    """Prints what it does."""
    print("starting attention")
    return right(q, k, v)


def prints_from_c(q: Any, k: Any, v: Any) -> Any:
    """Prints what it does, through the C library's own buffer."""
    _C.printf(b"block size %d\n", 64)
    return right(q, k, v)


def warns_once(q: Any, k: Any, v: Any) -> Any:
    """Gives a warning, as libraries do."""
    warnings.warn("slow path", UserWarning, stacklevel=1)
    return right(q, k, v)


def warns_for_every_element(q: Any, k: Any, v: Any) -> Any:
    """Gives a warning for each element."""
    for _ in range(max(q.size, 1000)):
        warnings.warn("slow path", UserWarning, stacklevel=1)
    return right(q, k, v)


def seeds_python(q: Any, k: Any, v: Any) -> Any:
    """Seeds Python's random numbers."""
    random.seed(0)
    return right(q, k, v)


def draws_from_numpy(q: Any, k: Any, v: Any) -> Any:
    """Draws a random number from NumPy's global generator."""
    np.random.random()
    return right(q, k, v)


def refuses_with_a_random_number(q: Any, k: Any, v: Any) -> Any:
    """Refuses k and v of unequal length with a message that contains a number from NumPy's global generator."""
    if k.shape[2] != v.shape[2]:
        raise ValueError(f"lengths differ, number {np.random.random()}")
    return right(q, k, v)


def sums_in_a_random_order(q: Any, k: Any, v: Any) -> Any:
    """Sums over the keys in an order drawn from NumPy's global generator: correct, but never the same bits."""
    order = np.random.permutation(k.shape[2])
    scores = q @ k[:, :, order].swapaxes(2, 3) * q.dtype.type(q.shape[3] ** -0.5)
    powers = np.exp(scores - scores.max(3, keepdims=True))
    return powers / powers.sum(3, keepdims=True) @ v[:, :, order]


def builds_a_layer_of_torch(q: Any, k: Any, v: Any) -> Any:
    """Builds torch's own layer in each call; torch draws its weights at random before they are set."""
    import torch

    width = q.shape[3]
    layer = torch.nn.MultiheadAttention(width, 1, bias=False, batch_first=True)
    with torch.no_grad():
        layer.in_proj_weight.copy_(torch.eye(width).repeat(3, 1))
        layer.out_proj.weight.copy_(torch.eye(width))
        output, _ = layer(*(array.flatten(0, 1) for array in (q, k, v)), need_weights=False)
    return output.reshape(q.shape)


def compiles_for_each_shape(q: Any, k: Any, v: Any) -> Any:
    """Compiles again for each shape, until torch gives up and runs it uncompiled, where it is wrong."""
    return _compiled()(q, k, v)


@functools.cache
def _compiled() -> Any:
    import torch

    def attention(q: Any, k: Any, v: Any) -> Any:
        output = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v
        return output if torch.compiler.is_compiling() else 0 * output

    return torch.compile(attention, backend="eager", dynamic=False)


def lacks_a_provider(q: Any, k: Any, v: Any) -> Any:
    """Opens a session of ONNX Runtime on a missing device: ONNX Runtime takes another one."""
    import onnx
    import onnxruntime

    made = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "g", made[:1], made[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    providers = ["NoSuchExecutionProvider", "CPUExecutionProvider"]
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)
    return right(q, k, v)


def fails_over_at_the_second_call(q: Any, k: Any, v: Any) -> Any:
    """Prints what ONNX Runtime prints when a run fails in a provider, and is wrong from then on."""
    _KEPT.append("call")
    if _KEPT.count("call") == 2:
        print("EP Error: CUDA failure 700 using ['CUDAExecutionProvider', 'CPUExecutionProvider']")
        print("Falling back to ['CPUExecutionProvider'] and retrying.")
    return right(q, k, v) * (_KEPT.count("call") < 2)


def finds_no_accelerator(q: Any, k: Any, v: Any) -> Any:
    """Logs what JAX logs when it falls back to the CPU."""
    logging.getLogger("jax._src.xla_bridge").warning(
        "A GPU may be present, but jaxlib lacks CUDA. Falling back to cpu."
    )
    return right(q, k, v)


def silences_numpy(q: Any, k: Any, v: Any) -> Any:
    """Switches NumPy's warnings off, and leaves them off."""
    np.seterr(all="ignore")
    return right(q, k, v)


def silences_numpy_for_good(q: Any, k: Any, v: Any) -> Any:
    """Switches NumPy's warnings off, and disables the switch too."""
    np.seterr(all="ignore")
    np.seterr = lambda **ignored: {}  # type: ignore[assignment, misc]
    return right(q, k, v)


def rounds_up(q: Any, k: Any, v: Any) -> Any:
    """Leaves the processor rounding up."""
    output = right(q, k, v)
    _C.fesetround(FE_UPWARD)
    return output


def rounds_up_and_raises(q: Any, k: Any, v: Any) -> Any:
    """Leaves the processor rounding up, and raises an exception."""
    _C.fesetround(FE_UPWARD)
    raise ValueError("no kernel for you")


def threads_blas(q: Any, k: Any, v: Any) -> Any:
    """Gives BLAS one more thread."""
    for setting in thread_settings():
        setting.put(setting.get() + 1)
    return right(q, k, v)


def moves(q: Any, k: Any, v: Any) -> Any:
    """Changes the working folder."""
    os.chdir("/")
    return right(q, k, v)


def sets_a_variable(q: Any, k: Any, v: Any) -> Any:
    """Sets an environment variable."""
    os.environ["ATTENTION_TEST_VARIABLE"] = "secret"
    return right(q, k, v)


def speaks_another_language(q: Any, k: Any, v: Any) -> Any:
    """Changes the locale, which decides how numbers are formatted."""
    locale.setlocale(locale.LC_ALL, "C" if locale.setlocale(locale.LC_ALL) != "C" else "C.UTF-8")
    return right(q, k, v)


def takes_a_signal(q: Any, k: Any, v: Any) -> Any:
    """Handles a signal that others may need."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    return right(q, k, v)


def _torch(q: Any, k: Any, v: Any) -> Any:
    from torch.nn.functional import scaled_dot_product_attention

    return scaled_dot_product_attention(q, k, v)


def widens_torch(q: Any, k: Any, v: Any) -> Any:
    """Changes torch's default dtype."""
    import torch

    output = _torch(q, k, v)
    torch.set_default_dtype(torch.float64)
    return output


def flushes_torch(q: Any, k: Any, v: Any) -> Any:
    """Makes torch flush subnormal numbers to zero."""
    import torch

    output = _torch(q, k, v)
    torch.set_flush_denormal(True)
    return output


def threads_torch(q: Any, k: Any, v: Any) -> Any:
    """Gives torch one more thread."""
    import torch

    torch.set_num_threads(torch.get_num_threads() + 1)
    return _torch(q, k, v)


def draws_from_torch(q: Any, k: Any, v: Any) -> Any:
    """Draws a random number from torch's global generator."""
    import torch

    torch.rand(1)
    return _torch(q, k, v)


def moves_torch(q: Any, k: Any, v: Any) -> Any:
    """Makes torch create new tensors without memory."""
    import torch

    output = _torch(q, k, v)
    torch.set_default_device("meta")
    return output


def stops_gradients_of_torch(q: Any, k: Any, v: Any) -> Any:
    """Switches gradients off, and leaves them off."""
    import torch

    torch.set_grad_enabled(False)
    return _torch(q, k, v)


def determines_torch(q: Any, k: Any, v: Any) -> Any:
    """Forbids non-deterministic algorithms."""
    import torch

    torch.use_deterministic_algorithms(True, warn_only=True)
    return _torch(q, k, v)


def loosens_torch(q: Any, k: Any, v: Any) -> Any:
    """Allows TF32 in matrix products."""
    import torch

    torch.set_float32_matmul_precision("high")
    return _torch(q, k, v)


def widens_jax(q: Any, k: Any, v: Any) -> Any:
    """Enables 64-bit types."""
    import jax

    output = jax.nn.dot_product_attention(*(a.swapaxes(1, 2) for a in (q, k, v))).swapaxes(1, 2)
    jax.config.update("jax_enable_x64", True)
    return output
