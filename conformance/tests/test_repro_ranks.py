"""Scripts of failures over several ranks: they start ranks, share out inputs, and distinguish right from wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.repro import Element, text
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.contract import Profile
from attention_conformance.impls.select import plug_in, with_attributes

#: Attention to the keys of all ranks, or only to a rank's own, in torch and JAX; JAX pads the shards.
TORCH = """
import torch
import torch.distributed as dist
from torch.distributed.nn.functional import all_reduce
from torch.nn.functional import pad, scaled_dot_product_attention

def right(q, k, v, *, group, lengths):
    first = -(-lengths[1] // dist.get_world_size(group)) * dist.get_rank(group)
    around = (0, 0, first, lengths[1] - first - k.shape[2])
    return wrong(q, *(all_reduce(pad(a, around), group=group) for a in (k, v)), group=group)

def wrong(q, k, v, *, group):
    return scaled_dot_product_attention(q, k, v)
"""
JAX = """
import jax
from jax import lax, numpy as jnp

def right(q, k, v, *, axis, lengths):
    k, v = (lax.all_gather(a, axis, axis=2, tiled=True)[:, :, :lengths[1]] for a in (k, v))
    return wrong(q, k, v)

def wrong(q, k, v):
    s = jnp.matmul(q, k.mT, precision="highest") * q.shape[3] ** -0.5
    return jnp.matmul(jax.nn.softmax(s), v, precision="highest")
"""


def script(folder: Path, framework: str, name: str, case_name: str, gradients: str = "", **attributes: Any) -> str:
    """The script of a failure over two ranks, with some right elements of its first result."""
    folder.joinpath("ranks_of_mine.py").write_text({"torch": TORCH, "jax": JAX}[framework], encoding="utf-8")
    plugged = plug_in(f"{folder}/ranks_of_mine.py:{name}@{framework}{gradients}")
    target = Target(with_attributes(plugged, {"ranks": 2, **attributes}), "cpu", "float32")
    case = every_case()[case_name]
    first, expected = case.results()[0], case.expected("float32")
    whole = np.asarray(getattr(expected, first))
    bound = np.broadcast_to(getattr(case.bound("float32", Profile.WIDE), first), whole.shape)
    places = [tuple(int(n) for n in index) for index in np.argwhere(np.isfinite(whole))[:: max(whole.size // 5, 1)]]
    elements = [Element(first, at, float(whole[at]), 0.0, float(bound[at])) for at in places]
    failed = Result("f", "cpu", "float32", case.name, ("SDPA-14",), Outcome.FAILED, Failure.VALUE, "SDPA-14", "wrong")
    return text(failed, target, case, elements, {"torch": "2.13.0"})


def test_a_script_for_torch_starts_its_ranks_by_the_launcher_of_torch(tmp_path: Path) -> None:
    """The script starts as many ranks as the call has, on the loopback device."""
    source = script(tmp_path, "torch", "right", "plain", uneven=True)
    assert '"-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"' in source
    assert "--nproc-per-node=2" in source
    assert "class Whole" not in source  # which only gradients need
    compile(source, "script", "exec")


@pytest.mark.slow(60)
@pytest.mark.parametrize(
    ("framework", "case", "gradients"), [("torch", "grad-plain", "+gradients"), ("jax", "plain", "")]
)
def test_a_script_over_ranks_tells_right_from_wrong(tmp_path: Path, framework: str, case: str, gradients: str) -> None:
    """The exit code is 0 for a function that attends to the keys of all ranks, 1 for one that attends to its own."""
    pytest.importorskip(framework)
    for name, code in (("right", 0), ("wrong", 1)):
        path = tmp_path / f"{name}.py"
        path.write_text(script(tmp_path, framework, name, case, gradients, uneven=True), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(path)],
            capture_output=True,
            text=True,
            timeout=240,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
