"""Interpreters of kernels: ``@triton`` and ``@pallas`` interpret device kernels on a machine without the device.

The worker sets an interpreter up before anything of the plug-in is imported.  On a machine with a device that the
kernels are compiled for, nothing is interpreted, and the plug-in is judged on that device.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from attention_conformance.impls.contract import Framework, Implementation

#: Most tiles of scores of a call that is interpreted: a tile takes a millisecond, and kernels have tiles of 16.
TILE, MOST_TILES = 16, 1 << 15

#: Statements of a script that interpret Triton's kernels and check their addresses, as triton_kernels.py does.
_TRITON_SCRIPT = """
os.environ["TRITON_INTERPRET"] = "1"  # on CPU tensors; set before Triton is imported
from triton.runtime import autotuner, interpreter

prune, launch = autotuner.Autotuner.prune_configs, interpreter.GridExecutor.__call__
autotuner.Autotuner.prune_configs = lambda self, kwargs: prune(self, kwargs)[:1]  # there is nothing to time
memory = []


def remembering(self, *args, **kwargs):
    given = [getattr(a, "base", a) for a in torch.utils._pytree.tree_leaves((args, kwargs))]
    storages = [a.untyped_storage() for a in given if isinstance(a, torch.Tensor)]
    memory[:] = [(s.data_ptr(), s.data_ptr() + s.nbytes()) for s in storages]
    launch(self, *args, **kwargs)


def looking(access, place):
    def looked_at(self, pointers, *rest):
        at, size = pointers.data[rest[place].data.astype(bool)], pointers.get_element_ty().primitive_bitwidth // 8
        inside = [(start <= at) & (at + np.uint64(size) <= end) for start, end in memory]
        assert np.logical_or.reduce(inside).all(), "access outside every array of the kernel"
        return access(self, pointers, *rest)

    return looked_at


interpreter.GridExecutor.__call__ = remembering
builder = interpreter.InterpreterBuilder
builder.create_masked_load = looking(builder.create_masked_load, 0)
builder.create_masked_store = looking(builder.create_masked_store, 1)
"""

_PALLAS_SCRIPT = """
pallas.pallas_call = functools.partial(pallas.pallas_call, interpret=True)
"""


@dataclass(frozen=True)
class Kernels:
    """A language of kernels: the framework whose arrays its functions take, and how it is set up."""

    framework: Framework
    requires: tuple[str, ...]
    #: ``module:function`` without arguments that returns Entered.
    enter: str
    #: Imports and statements of a script that does the same, on a machine that interprets.
    imports: tuple[str, ...]
    script: str


@dataclass(frozen=True)
class Entered:
    """Way in which kernels run in this process."""

    devices: tuple[str, ...]
    #: Dtypes that the interpreter itself computes wrongly, with a sentence and its source.
    unfaithful: Mapping[str, str] = field(default_factory=dict)


KERNELS = {
    "triton": Kernels(
        Framework.TORCH,
        ("torch", "triton"),
        "attention_conformance.impls.torch.triton_kernels:enter",
        ("import os",),
        _TRITON_SCRIPT,
    ),
    "pallas": Kernels(
        Framework.JAX,
        ("jax",),
        "attention_conformance.impls.jax.pallas_kernels:enter",
        ("import functools", "from jax.experimental import pallas"),
        _PALLAS_SCRIPT,
    ),
}


@functools.cache
def enter(kernels: str) -> Entered:
    """Set up the interpreter of a language in this process, once; it stays."""
    from attention_conformance.impls.loading import load  # which imports this module

    found: Entered = load(KERNELS[kernels].enter)()
    return found


#: Reason why interpreted kernels are not timed.
NOT_TIMED = "not timed: its kernels are interpreted, and an interpreter's time says nothing about a kernel's"


def interpreted(implementation: Implementation, device: str) -> bool:
    """Whether the kernels of an implementation are interpreted on a device, and not compiled for it.

    Parameters
    ----------
    implementation
        Any implementation; most have no kernels that could be interpreted.
    device
        Device of the call: compiled kernels run on none but their own.

    Returns
    -------
    bool
        True for kernels of Triton or Pallas on the CPU.
    """
    return bool(implementation.kernels) and device == "cpu"


def not_judged(implementation: Implementation, arrays: Mapping[str, np.ndarray]) -> str:
    """Reason why an implementation is not called with these arguments; "" where it is."""
    if not implementation.kernels:
        return ""
    entered, first = enter(implementation.kernels), next(iter(arrays.values()))
    reason = entered.unfaithful.get(str(first.dtype), "")
    if not reason and entered.devices == ("cpu",) and _tiles(arrays) > MOST_TILES:
        reason = f"interpreted, it has more than {MOST_TILES} tiles of {TILE} by {TILE} scores"
    return reason and f"not judged: {reason}"


def _tiles(arrays: Mapping[str, np.ndarray]) -> int:
    q, k = arrays.get("q"), arrays.get("k")
    if q is None or k is None or not q.ndim == k.ndim == 4:
        return 0
    return q.shape[0] * q.shape[1] * math.ceil(q.shape[2] / TILE) * math.ceil(k.shape[2] / TILE)
