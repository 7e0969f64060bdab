"""Interpreted kernels: plug-ins with ``@pallas`` and ``@triton`` are judged on a machine without their device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from attention_conformance.impls import interpreters
from attention_conformance.impls.select import plug_in
from attention_conformance.impls.tests import commands

#: A Pallas kernel: all keys at once, rows in blocks of 8.  {rows} is the right comparison of causal.
PALLAS = """
import functools
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl


def kernel(q, k, v, out, *, is_causal):
    s = jnp.dot(q[0, 0], k[0, 0].T, precision="highest") * q.shape[3] ** -0.5
    if is_causal:
        rows = pl.program_id(2) * 8 + jnp.arange(8)[:, None]
        s = jnp.where(jnp.arange(s.shape[1])[None] {compared} rows, s, -jnp.inf)
    p = jnp.exp(s - s.max(-1, keepdims=True))
    out[0, 0] = jnp.dot(p, v[0, 0], precision="highest") / p.sum(-1, keepdims=True)


@functools.partial(jax.jit, static_argnames="is_causal")
def attention(q, k, v, *, is_causal=False):
    group, (b, h, rows, width), keys = q.shape[1] // k.shape[1], q.shape, k.shape[2]
    head = lambda b, h, i: (b, h // group, 0, 0)
    return pl.pallas_call(
        functools.partial(kernel, is_causal=is_causal),
        grid=(b, h, rows // 8),
        in_specs=[
            pl.BlockSpec((1, 1, 8, width), lambda b, h, i: (b, h, i, 0)),
            pl.BlockSpec((1, 1, keys, width), head),
            pl.BlockSpec((1, 1, keys, v.shape[3]), head),
        ],
        out_specs=pl.BlockSpec((1, 1, 8, v.shape[3]), lambda b, h, i: (b, h, i, 0)),
        out_shape=jax.ShapeDtypeStruct((b, h, rows, v.shape[3]), q.dtype),
    )(q, k, v)


attention.lengths = "multiple of 8"
attention.dtypes = ("float32",)
"""

#: A Triton flash kernel with a configuration to choose.  {there} is the mask of the loads of keys.
TRITON = """
import torch
import triton
import triton.language as tl


@triton.autotune([triton.Config({{"N": 16}}), triton.Config({{"N": 32}})], key=["keys"])
@triton.jit
def kernel(q, k, v, out, scale, group, queries, keys, D: tl.constexpr, causal: tl.constexpr, N: tl.constexpr):
    head, rows, d = tl.program_id(1), tl.program_id(0) * 16 + tl.arange(0, 16), tl.arange(0, D)
    inside, at = rows[:, None] < queries, head * queries * D + rows[:, None] * D + d[None, :]
    tile = tl.load(q + at, mask=inside, other=0.0)
    k += head // group * keys * D
    v += head // group * keys * D
    top, total, sums = tl.full([16], -1e30, tl.float32), tl.zeros([16], tl.float32), tl.zeros([16, D], tl.float32)
    for start in range(0, keys, N):
        columns = start + tl.arange(0, N)
        from_here, there = columns[:, None] * D + d[None, :], columns[:, None] < keys
        s = tl.dot(tile, tl.trans(tl.load(k + from_here{there})), input_precision="ieee") * scale
        seen = columns[None, :] < keys
        if causal:
            seen = seen & (columns[None, :] {compared} rows[:, None])
        s = tl.where(seen, s, -float("inf"))
        new = tl.maximum(top, tl.max(s, 1))
        p, shrink = tl.exp(s - new[:, None]), tl.exp(top - new)
        total = total * shrink + tl.sum(p, 1)
        values = tl.load(v + from_here, mask=there, other=0.0)
        sums, top = sums * shrink[:, None] + tl.dot(p.to(values.dtype), values, input_precision="ieee"), new
    tl.store(out + at, (sums / total[:, None]).to(out.dtype.element_ty), mask=inside)


def attention(q, k, v, *, is_causal=False):
    (b, h, queries, width), keys = q.shape, k.shape[2]
    out = torch.empty_like(q)
    group = h // k.shape[1]
    kernel[triton.cdiv(queries, 16), b * h](
        q.contiguous(), k.contiguous(), v.contiguous(), out, width**-0.5, group, queries, keys, width, is_causal
    )
    return out


attention.head_widths = (16, 32, 64)
attention.equal_widths = True
attention.lengths = "at least 1"
attention.dtypes = ("float32", "bfloat16")
"""

#: A selection that takes seconds: the causal tiles, and several numbers of rows.
CASES = ("--case", "causal-tiles", "--case", "causal-rows-of-four", "--case", "causal-one-query")


def judged(folder: Path, text: str, framework: str, *options: str) -> str:
    """The output of a run over a few cases, which must not pass where the text is wrong."""
    folder.joinpath("kernels.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "attention_conformance", "check", f"kernels.py:attention@{framework}"]
    return commands.run([*command, *CASES, *options], cwd=folder, timeout=600).stdout


@pytest.mark.slow(15)
@pytest.mark.parametrize(("compared", "said"), [("<=", "2 passed"), ("<", "wrong by value")])
def test_a_kernel_of_pallas_is_interpreted(compared: str, said: str, tmp_path: Path) -> None:
    """A Pallas kernel runs without ``interpret=True`` of its own; a wrong one is found."""
    pytest.importorskip("jax")
    assert said in judged(tmp_path, PALLAS.format(compared=compared), "pallas")


@pytest.mark.slow(30)
@pytest.mark.parametrize(
    ("compared", "there", "said"),
    [
        ("<=", ", mask=there, other=0.0", "3 passed"),
        ("<", ", mask=there, other=0.0", "wrong by value"),
        ("<=", "", "load outside every array of the kernel"),
    ],
)
def test_a_kernel_of_triton_is_interpreted(compared: str, there: str, said: str, tmp_path: Path) -> None:
    """The autotuner of a Triton kernel has nothing to time; a load behind the keys is an error, not a number."""
    pytest.importorskip("triton")
    text = TRITON.format(compared=compared, there=there)
    assert said in judged(tmp_path, text, "triton", "--dtype", "float32")


@pytest.mark.slow(30)
def test_what_the_interpreter_gets_wrong_is_not_judged(tmp_path: Path) -> None:
    """bfloat16 cases are not judged as long as Triton's interpreter multiplies their bits."""
    pytest.importorskip("triton")
    text = TRITON.format(compared="<=", there=", mask=there, other=0.0")
    said = judged(tmp_path, text, "triton", "--dtype", "bfloat16")
    if "not judged" not in said:  # the interpreter was fixed
        assert "3 passed" in said
        return
    assert "3 skipped" in said
    assert "FAILED: nothing was executed, so nothing is known" in said


@pytest.mark.slow(30)
def test_a_script_of_a_triton_kernel_shows_its_failure(tmp_path: Path) -> None:
    """The script needs only Triton and torch."""
    pytest.importorskip("triton")
    judged(tmp_path, TRITON.format(compared="<=", there=""), "triton", "--dtype", "float32")
    script = next(tmp_path.glob("conformance-scripts/*.py"))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "access outside every array of the kernel" in done.stderr


def test_a_call_for_a_tpu_runs_in_the_interpreter_of_tpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call is for a TPU by its parameters, scratch memory or memory spaces; others use the generic interpreter."""
    pytest.importorskip("jax")
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    from attention_conformance.impls.jax import pallas_kernels

    called: list[object] = []
    monkeypatch.setattr(pallas, "pallas_call", lambda *_, **keywords: called.append(keywords["interpret"]))
    assert pallas_kernels.enter().devices == ("cpu",)
    of_tpus = (
        {"compiler_params": tpu.CompilerParams()},
        {"scratch_shapes": [tpu.VMEM((8, 128), np.dtype("float32"))]},
        {"in_specs": [pallas.BlockSpec(memory_space=tpu.VMEM)]},
    )
    for keywords in ({}, {"grid": (1,), "in_specs": [pallas.BlockSpec((8, 8), lambda i: (i, 0))]}, *of_tpus):
        pallas.pallas_call(print, None, **keywords)
    assert called[:2] == [True, True]
    assert [type(each) for each in called[2:]] == [tpu.InterpretParams] * 3


def test_an_address_outside_every_array_is_found() -> None:
    """The first and the last byte of every unmasked address are checked."""
    torch = pytest.importorskip("torch")
    from attention_conformance.impls.torch import triton_kernels

    given, array = triton_kernels._Given(), torch.zeros(10)
    given.take((array[2:8], 3), ["k", "count"])
    at = array.data_ptr() + 4 * np.arange(-1, 11)
    pointers = SimpleNamespace(data=at.astype(np.uint64), get_element_ty=lambda: SimpleNamespace(primitive_bitwidth=32))
    given.check("load", pointers, (at >= at[1]) & (at < at[11]))
    with pytest.raises(triton_kernels.OutOfRange, match=r"4 bytes behind the end of k$"):
        given.check("load", pointers, at > at[1])
    with pytest.raises(triton_kernels.OutOfRange, match=r"4 bytes before the beginning of k, and 1 more"):
        given.check("store", pointers, None)


def test_a_call_of_too_many_tiles_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a call would take minutes, and its time limit would call it wrong; on a device all calls are made."""
    entered = interpreters.Entered(("cpu",), {"float16": "bits"})
    monkeypatch.setattr(interpreters, "enter", lambda kernels: entered)
    one = plug_in(f"{__file__}:attention@triton")
    small, many = np.zeros((1, 2, 5, 8), np.float32), np.zeros((1, 40_000, 1, 1), np.float32)
    assert interpreters.not_judged(one, {"q": small, "k": small}) == ""
    assert "more than 32768 tiles" in interpreters.not_judged(one, {"q": many, "k": many})
    assert interpreters.not_judged(one, {"q": small.astype(np.float16)}) == "not judged: bits"
    entered = interpreters.Entered(("cuda",))
    assert interpreters.not_judged(one, {"q": many, "k": many}) == ""


def test_other_plug_ins_are_judged_as_they_are() -> None:
    """No interpreter is set up for plug-ins without ``@pallas`` or ``@triton``."""
    assert interpreters.not_judged(plug_in(f"{__file__}:attention@torch"), {}) == ""


@pytest.mark.slow(30)
@pytest.mark.parametrize(
    ("name", "case", "said"),
    [
        ("pallas_gpu:mha", "causal-square", "1 passed"),
        # Its loop over the keys runs as far as the rows do: beyond the last key where there are more rows.
        ("pallas_gpu:mha", "causal-more-queries", "1 xfailed"),  # pallas-mha-causal is on record
        ("pallas_gpu:gqa", "one-query", "1 passed"),
        ("pallas_tpu:flash_attention", "causal-square", "1 passed"),
    ],
)
def test_a_kernel_that_jax_ships_is_judged(name: str, case: str, said: str, tmp_path: Path) -> None:
    """JAX's own kernels are judged in the interpreter by their adapters; the fault in one is found."""
    pytest.importorskip("jax")
    command = [
        sys.executable,
        "-m",
        "attention_conformance",
        "check",
        f"attention_conformance.impls.kernels.{name}@pallas",
    ]
    done = commands.run([*command, "--dtype", "float32", "--case", case], cwd=tmp_path, timeout=600)
    assert said in done.stdout
