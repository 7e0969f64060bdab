"""Modules of KernelBench's form: a problem's file, and a candidate, a ``torch.nn.Module``.

A problem's file has a class ``Model``, ``get_inputs()`` and ``get_init_inputs()`` (ScalingIntelligence/KernelBench,
level 1, problem 97).  The gate takes only the shapes and the dtype of its inputs, from tensors that hold no numbers.
Which of them are q, k and v, in which order of axes, and whether it is causal is found by trying its own ``Model``,
whose answer must be attention of them.

``described`` runs in a worker process that never had a candidate.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_conformance.impls.contract import Implementation, ImplementationError
from attention_conformance.impls.loading import load

#: The module for torch's side, and the function that makes a candidate's function from its record.
KERNELBENCH = "attention_conformance.impls.torch.kernelbench"
MADE = f"{KERNELBENCH}:made"

#: Length of the sequences on which a problem's Model is tried, and the batch size.
TRIED, BATCH = 5, 2

#: Axes of an input in the order (B, H, S, D), for q, k and v with heads outside or inside, and without heads.
AXES = {"BHSD": (0, 1, 2, 3), "BSHD": (0, 2, 1, 3), "BSD": (0, None, 1, 2)}

#: Keywords that every call of a problem has, by the name of its form.
FORMS: dict[str, Mapping[str, Any]] = {"": {}, "causal": {"is_causal": True}}


@dataclass(frozen=True)
class Problem:
    """A problem, as its file describes it."""

    file: str
    #: Places of q, k and v among the inputs; and their axes, a key of AXES.
    order: tuple[int, ...]
    axes: str
    #: (B, Hq, Hkv, Sq, Sk, D, Dv).
    sizes: tuple[int, ...]
    dtype: str
    #: Arguments that the class is made with, as JSON.
    init: str
    #: A key of FORMS.
    form: str = ""

    @property
    def text(self) -> str:
        """Meaning of its inputs, as text."""
        names = ", ".join("qkv"[self.order.index(i)] for i in range(3))
        return f"forward({names}), each {self.axes}{', ' * bool(self.form)}{self.form}"


def source(problem: Problem, file: str, name: str, folder: str) -> str:
    """The text from which ``made`` makes the function of a candidate."""
    asked = {"init": problem.init, "order": problem.order, "axes": problem.axes, "problem": problem.file}
    asked["form"] = problem.form
    return json.dumps({"file": file, "name": name, "folder": folder, **asked})


def problem_of(implementation: Implementation) -> str:
    """The file of the problem that a candidate answers; "" without one."""
    return str(json.loads(implementation.source)["problem"]) if implementation.target == MADE else ""


def file_of(implementation: Implementation) -> str:
    """The candidate's file."""
    if implementation.target == MADE:
        return str(json.loads(implementation.source)["file"])
    return implementation.target.rpartition(":")[0]


def described(file: str) -> Problem:
    """The problem of a file.  Raises ImplementationError, with one sentence, if it is not plain attention."""
    module, init, shapes, dtypes = load(f"{KERNELBENCH}:problem")(file)
    if len(shapes) != 3 or len(set(dtypes)) > 1 or {len(each) for each in shapes} not in ({3}, {4}):
        raise ImplementationError(
            f"get_inputs of {file} gives {', '.join(map(str, shapes))}; the gate takes q, k and v of one dtype, each"
            " (B, H, S, D), (B, S, H, D) or (B, S, D)"
        )
    order, axes, form = _understood(file, functools.partial(load(f"{KERNELBENCH}:answer"), module), shapes)
    q, k, v = (_sizes(shapes[i], axes) for i in order)
    sizes = (q[0], q[1], k[1], q[2], k[2], q[3], v[3])
    return Problem(file, order, axes, sizes, dtypes[0], init, form)


def _sizes(shape: Sequence[int], axes: str) -> tuple[int, ...]:
    """(B, H, S, D) of an input."""
    return tuple(1 if at is None else shape[at] for at in AXES[axes])


def _understood(
    file: str, answer: Callable[..., np.ndarray], shapes: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], str, str]:
    """The order, the axes and the form in which the module's own answer is attention of its inputs."""
    from attention_conformance.conformance.closeness import error_share

    rng = np.random.default_rng(0)
    failed = ""
    for order, axes in itertools.product(itertools.permutations(range(3)), AXES):
        if (len(shapes[0]) == 3) != (axes == "BSD"):
            continue
        sizes = [_sizes(shapes[i], axes) for i in order]
        equal = sizes[0][2] == sizes[1][2]
        # Some models work only at their own length, and causal ones may be aligned at the other end for unequal ones.
        for whole in (False, True) if equal else (True,):
            arrays = [
                rng.standard_normal((BATCH, h, s if whole else TRIED, d)).astype(np.float32) for _, h, s, d in sizes
            ]
            try:
                found = answer(order, axes, arrays)
                for form, keywords in FORMS.items():
                    if error_share(found, *arrays, rows=TRIED, **keywords) <= 1:
                        return order, axes, form
            except Exception as error:
                failed = f" ({type(error).__name__}: {error})".splitlines()[0]
                continue
            break
    raise ImplementationError(
        f"the Model of {file} is not plain attention of its three inputs, in any order{failed}: the gate takes"
        " softmax of q k^T over the square root of the width, without mask or causal"
    )
