"""ONNX Runtime sessions: from a model to a function that runs it on OrtValues through IO binding.

A run copies nothing: inputs are bound where they are, and outputs stay on the device.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import onnxruntime

from attention_conformance.impls.contract import Call, Function
from attention_conformance.impls.onnx.graph import build, compared
from attention_conformance.impls.process import threads
from attention_conformance.impls.process.fallbacks import WARNING

#: Fatal messages only: failures are raised as exceptions as well, and the caller shows them.
QUIET = 4

#: Threads of a session where their number is not set.  Each session has its own pool and stays open for the next call
#: of its kind: with a thread for each core of a large machine, hundreds of sessions would have thousands of threads.
FEW = 4

PROVIDERS = {
    "cpu": ("CPUExecutionProvider",),
    "cuda": ("CUDAExecutionProvider", "CPUExecutionProvider"),
}


def options() -> Any:
    """Options of sessions: silent, with default optimisation, and with as many threads as are wanted, or a few."""
    found = onnxruntime.SessionOptions()
    found.log_severity_level = QUIET
    found.intra_op_num_threads = threads.wanted() or min(FEW, threads.usable_cores())
    return found


@functools.cache
def session(model: bytes | str, device: str) -> Any:
    """The session of a serialised model, or of the file with this path, made once."""
    opened = onnxruntime.InferenceSession(model, options(), providers=list(PROVIDERS[device]))
    wanted, has = PROVIDERS[device][0], opened.get_providers()
    if wanted not in has:  # the session is silent, and continues with what it has
        warnings.warn(f"{WARNING} {wanted} is not in available provider names of the session: {has}", stacklevel=2)
    return opened


def bound(opened: Any, outputs: Sequence[str], device: str) -> Function:
    """The function that runs a session: its inputs as keywords or in order, the named outputs as a tuple, or the one.

    Every call gets outputs of its own, so the next call does not change a result.  No RunOptions are given: any at all
    cost 25 µs a run (ONNX Runtime 1.31), and the session's options decide how much a run logs as well.
    """
    inputs = tuple(each.name for each in opened.get_inputs())

    def run(*arrays: Any, **named: Any) -> Any:
        binding = opened.io_binding()
        for name, value in zip(inputs, arrays, strict=False):
            binding.bind_ortvalue_input(name, value)
        for name, value in named.items():
            binding.bind_ortvalue_input(name, value)
        for name in outputs:
            binding.bind_output(name, device)
        opened.run_with_iobinding(binding)
        if device != "cpu":
            binding.synchronize_outputs()
        results = tuple(binding.get_outputs())
        return results if len(results) > 1 else results[0]

    return run


def prepare(function: Function, call: Call) -> Function:
    """Build the model of a call and open its session; ``run(q, k, v, **arrays)`` takes and returns OrtValues.

    ``function`` is a builder as ``impls.onnx.graph`` describes; it raises NotImplementedError for what the
    operator cannot express.
    """
    opened = session(build(function, call).SerializeToString(), call.device)
    return compared(bound(opened, call.results(), call.device), call, lambda value: value.numpy())
