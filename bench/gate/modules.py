"""Modules of KernelBench's form: a problem's file that says what is asked, and a candidate, a ``torch.nn.Module``.

A problem's file has a class ``Model``, ``get_inputs()`` and ``get_init_inputs()`` (ScalingIntelligence/KernelBench,
level 1, problem 97).  Of its inputs the shapes and the dtype are taken, from tensors that hold no numbers; which of
them are q, k and v, and in which order of axes, is found by its own ``Model``: its answer has to be attention of them.

These functions run in worker processes: ``described`` in one that no candidate was in.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attention_conformance.impls.contract import Function, Implementation, ImplementationError
from attention_conformance.impls.loading import load

#: What makes a candidate's function of its record.
MADE = f"{__name__}:made"

#: Length of the sequences on which a problem's Model is tried, and its batch.
TRIED, BATCH = 5, 2

#: Axes of an input in the order (B, H, S, D): of q, k and v with heads outside or inside, and without heads.
AXES = {"BHSD": (0, 1, 2, 3), "BSHD": (0, 2, 1, 3), "BSD": (0, None, 1, 2)}


@dataclass(frozen=True)
class Problem:
    """What a problem's file asks."""

    file: str
    #: Which input is q, which k, which v; and their axes, a key of AXES.
    order: tuple[int, ...]
    axes: str
    #: (B, Hq, Hkv, Sq, Sk, D, Dv).
    sizes: tuple[int, ...]
    dtype: str
    #: What the class is made with, as JSON.
    init: str

    @property
    def text(self) -> str:
        """How its inputs are understood."""
        names = ", ".join("qkv"[self.order.index(i)] for i in range(3))
        return f"forward({names}), each {self.axes}"


def source(problem: Problem, file: str, name: str, folder: str) -> str:
    """The text of which ``made`` makes the function of a candidate."""
    asked = {"init": problem.init, "order": problem.order, "axes": problem.axes, "problem": problem.file}
    return json.dumps({"file": file, "name": name, "folder": folder, **asked})


def problem_of(implementation: Implementation) -> str:
    """The file of the problem that a candidate answers; "" without one."""
    return str(json.loads(implementation.source)["problem"]) if implementation.target == MADE else ""


def file_of(implementation: Implementation) -> str:
    """The candidate's file."""
    if implementation.target == MADE:
        return str(json.loads(implementation.source)["file"])
    return implementation.target.rpartition(":")[0]


def made(text: str) -> Function:
    """A candidate's module as a function of q, k and v.  Raises ImplementationError for what is no module."""
    import torch

    asked = json.loads(text)
    kind = load(f"{asked['file']}:{asked['name']}", asked["folder"])
    if not (isinstance(kind, type) and issubclass(kind, torch.nn.Module)):
        raise ImplementationError(f"{asked['name']} is no torch.nn.Module")
    try:
        module = kind(*json.loads(asked["init"]))
    except Exception as error:
        given = ", ".join(map(repr, json.loads(asked["init"])))
        raise ImplementationError(f"{asked['name']}({given}) raised {type(error).__name__}: {error}") from error
    return _function(module, tuple(asked["order"]), asked["axes"])


def _function(module: Any, order: tuple[int, ...], axes: str) -> Function:
    """The module's answer to q, k and v in the axes (B, H, S, D), or as a layout has them."""
    import torch

    places: list[Any] = []

    def attention(q: Any, k: Any, v: Any) -> Any:
        if places != [(q.device, q.dtype)]:
            module.to(device=q.device, dtype=q.dtype)
            places[:] = [(q.device, q.dtype)]
        given = [(q, k, v)[order.index(i)] for i in range(3)]
        if axes == "BSD":
            given = [each[:, 0] for each in given]
        with torch.no_grad():
            found = module(*given)
        return found.unsqueeze(1) if axes == "BSD" and isinstance(found, torch.Tensor) else found

    return attention


def described(file: str) -> Problem:
    """What a problem's file asks.  Raises ImplementationError, with one sentence, for what is no plain attention."""
    from torch._subclasses import FakeTensorMode

    folder = str(Path(file).parent)
    model, get_inputs = load(f"{file}:Model", folder), load(f"{file}:get_inputs", folder)
    init = list(load(f"{file}:get_init_inputs", folder)())
    try:
        text = json.dumps(init)
    except TypeError:
        raise ImplementationError(f"get_init_inputs of {file} gives more than numbers and texts") from None
    with FakeTensorMode():
        given = list(get_inputs())
    shapes = [tuple(each.shape) if hasattr(each, "shape") else () for each in given]
    dtypes = {str(getattr(each, "dtype", type(each))).removeprefix("torch.") for each in given}
    ranks = {len(shape) for shape in shapes}
    if len(given) != 3 or len(dtypes) > 1 or ranks not in ({3}, {4}):
        raise ImplementationError(
            f"get_inputs of {file} gives {', '.join(map(str, shapes))}; the gate takes q, k and v of one dtype, each"
            " (B, H, S, D), (B, S, H, D) or (B, S, D)"
        )
    module = model(*init)
    order, axes = _understood(file, functools.partial(_function, module), shapes)
    q, k, v = (_sizes(shapes[i], axes) for i in order)
    sizes = (q[0], q[1], k[1], q[2], k[2], q[3], v[3])
    return Problem(file, order, axes, sizes, dtypes.pop(), text)


def _sizes(shape: Sequence[int], axes: str) -> tuple[int, ...]:
    """(B, H, S, D) of an input."""
    return tuple(1 if at is None else shape[at] for at in AXES[axes])


def _understood(
    file: str, function: Callable[[tuple[int, ...], str], Function], shapes: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], str]:
    """The order and the axes in which the module's own answer is attention of its inputs."""
    import torch

    from attention_conformance.conformance.closeness import error_share

    rng = np.random.default_rng(0)
    failed = ""
    for order, axes in itertools.product(itertools.permutations(range(3)), AXES):
        if (len(shapes[0]) == 3) != (axes == "BSD"):
            continue
        sizes = [_sizes(shapes[i], axes) for i in order]
        for whole in (False, True):  # some are written for their own length
            arrays = [
                rng.standard_normal((BATCH, h, s if whole else TRIED, d)).astype(np.float32) for _, h, s, d in sizes
            ]
            inside = axes == "BSHD"
            native = [torch.from_numpy(np.ascontiguousarray(a.transpose(0, 2, 1, 3)) if inside else a) for a in arrays]
            try:
                found = function(order, axes)(*native)
                share = error_share(found.transpose(1, 2) if inside else found, *arrays, rows=TRIED)
            except Exception as error:
                failed = f" ({type(error).__name__}: {error})".splitlines()[0]
                continue
            if share <= 1:
                return order, axes
            break
    raise ImplementationError(
        f"the Model of {file} is no plain attention of its three inputs, in no order of them{failed}: the gate takes"
        " softmax of q k^T over the square root of the width, without mask"
    )
