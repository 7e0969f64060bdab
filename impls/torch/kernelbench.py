"""Files of KernelBench's form: a problem's ``Model`` and its inputs, and a candidate's class as a function."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._subclasses import FakeTensorMode

from attention_conformance.impls.contract import Function, ImplementationError
from attention_conformance.impls.loading import load


def made(text: str) -> Function:
    """A candidate's module as a function of q, k and v; ``text`` comes from bench/gate/modules.py.

    Raises ImplementationError for a class that is not a module, or cannot be instantiated.
    """
    asked = json.loads(text)
    kind = load(f"{asked['file']}:{asked['name']}", asked["folder"])
    if not (isinstance(kind, type) and issubclass(kind, torch.nn.Module)):
        raise ImplementationError(f"{asked['name']} is not a torch.nn.Module")
    try:
        module = kind(*json.loads(asked["init"]))
    except Exception as error:
        given = ", ".join(map(repr, json.loads(asked["init"])))
        raise ImplementationError(f"{asked['name']}({given}) raised {type(error).__name__}: {error}") from error
    attention = function(module, tuple(asked["order"]), asked["axes"])
    return _causal(attention) if asked["form"] == "causal" else attention


def function(module: Any, order: tuple[int, ...], axes: str) -> Function:
    """The module's answer to q, k and v in the axes (B, H, S, D), or as a layout has them.

    Parameters
    ----------
    order
        Place of q, k and v among the inputs.
    axes
        "BSD" for a module without heads.
    """
    places: list[Any] = []
    made = {name: tensor.detach().clone() for name, tensor in _numbers(module)}

    def attention(q: Any, k: Any, v: Any) -> Any:
        if places != [(q.device, q.dtype)]:
            module.to(device=q.device, dtype=q.dtype)
            # From the numbers that it was made with, as a dtype in between may have been narrower.
            for name, tensor in _numbers(module):
                if name in made and made[name].shape == tensor.shape:
                    tensor.detach().copy_(made[name])
            places[:] = [(q.device, q.dtype)]
        given = [(q, k, v)[order.index(i)] for i in range(3)]
        if axes == "BSD":
            given = [each[:, 0] for each in given]
        with torch.no_grad():
            found = module(*given)
        return found.unsqueeze(1) if axes == "BSD" and isinstance(found, torch.Tensor) else found

    return attention


def _numbers(module: Any) -> list[tuple[str, Any]]:
    """The parameters and buffers that a change of dtype rounds, by name."""
    every = itertools.chain(module.named_parameters(), module.named_buffers())
    return [(name, tensor) for name, tensor in every if tensor.is_floating_point()]


def _causal(attention: Function) -> Function:
    """A module that is causal by itself, as a function that is called with ``is_causal``."""

    def causal(q: Any, k: Any, v: Any, *, is_causal: bool) -> Any:
        assert is_causal
        return attention(q, k, v)

    return causal


def problem(file: str) -> tuple[Any, str, list[tuple[int, ...]], list[str]]:
    """Problem of a file: its module, the module's arguments as JSON, and the shapes and dtypes of its inputs.

    Raises ImplementationError for a file without one, or with other arguments than numbers and texts.
    """
    folder = str(Path(file).parent)
    model, get_inputs = load(f"{file}:Model", folder), load(f"{file}:get_inputs", folder)
    init = list(load(f"{file}:get_init_inputs", folder)())
    try:
        text = json.dumps(init)
    except TypeError:
        raise ImplementationError(f"get_init_inputs of {file} gives more than numbers and texts") from None
    with FakeTensorMode():  # tensors of the sizes that the problem has, and no memory
        given = list(get_inputs())
    shapes = [tuple(each.shape) if hasattr(each, "shape") else () for each in given]
    dtypes = [str(getattr(each, "dtype", type(each))).removeprefix("torch.") for each in given]
    return model(*init), text, shapes, dtypes


def answer(module: Any, order: tuple[int, ...], axes: str, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The module's answer to q, k and v (B, H, S, D), as an array of these axes; raises what it raises."""
    inside = axes == "BSHD"
    native = [torch.from_numpy(np.ascontiguousarray(a.transpose(0, 2, 1, 3)) if inside else a) for a in arrays]
    found = function(module, order, axes)(*native)
    return (found.transpose(1, 2) if inside else found).detach().numpy()
