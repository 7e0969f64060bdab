"""Tiny adapters around correct attention, each wrong in one way, for tests of the adapter check."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import Any

import numpy as np

from attention_conformance.impls.tests.fakes import right


def heads_inside(q: Any, k: Any, v: Any, *, is_causal: bool = False) -> Any:
    """Computes in (B, S, H, D), and declares nothing."""
    if q.shape[2] != k.shape[2]:
        raise ValueError("q and k differ in heads")
    return right(*(a.swapaxes(1, 2) for a in (q, k, v)), is_causal=is_causal).swapaxes(1, 2)


def heads_outside(q: Any, k: Any, v: Any) -> Any:
    """Computes in (B, H, S, D), but declares the other layout."""
    return right(q, k, v)


heads_outside.layout = "BSHD"  # type: ignore[attr-defined]


def values_first(q: Any, k: Any, v: Any) -> Any:
    """Passes v as k, and k as v."""
    return right(q, v, k)


def keys_first(q: Any, k: Any, v: Any) -> Any:
    """Passes k as q, and q as k."""
    return right(k, q, v)


def other_names(query: Any, key: Any, value: Any) -> Any:
    """Names its arguments differently."""
    return right(query, key, value)


def a_dictionary(q: Any, k: Any, v: Any) -> Any:
    """Returns the output in a dictionary."""
    return {"output": right(q, k, v)}


def nothing(q: Any, k: Any, v: Any) -> Any:
    """Forgets to return."""
    right(q, k, v)


def a_number(q: Any, k: Any, v: Any) -> Any:
    """Returns the sum of its output, a NumPy scalar."""
    return right(q, k, v).sum()


def a_float(q: Any, k: Any, v: Any) -> Any:
    """Returns the sum of its output, a Python number."""
    return float(right(q, k, v).sum())


def a_tensor(q: Any, k: Any, v: Any) -> Any:
    """Returns a torch tensor for NumPy arrays."""
    import torch

    return torch.from_numpy(right(q, k, v))


def an_array_of_numpy(q: Any, k: Any, v: Any) -> Any:
    """Returns a NumPy array for torch tensors."""
    return right(q.numpy(), k.numpy(), v.numpy())


def nowhere(q: Any, k: Any, v: Any) -> Any:
    """Returns a tensor that is on no device."""
    return q.to("meta")


def always_weights(q: Any, k: Any, v: Any) -> Any:
    """Returns the weights even when they are not requested."""
    return right(q, k, v), np.zeros((*q.shape[:3], k.shape[2]), q.dtype)


def never_lse(q: Any, k: Any, v: Any, *, return_lse: bool = False) -> Any:
    """Accepts return_lse, but returns only the output."""
    return right(q, k, v)


def lse_first(q: Any, k: Any, v: Any, *, return_lse: bool = False) -> Any:
    """Returns (lse, output)."""
    return right(q, k, v, return_lse=True)[::-1] if return_lse else right(q, k, v)


async def coroutine(q: Any, k: Any, v: Any) -> Any:
    """Must be awaited."""
    return right(q, k, v)


def future(q: Any, k: Any, v: Any) -> Any:
    """Returns a future of the output."""
    held: Future[Any] = Future()
    held.set_result(right(q, k, v))
    return held


def unfinished(q: Any, k: Any, v: Any) -> Any:
    """Returns its output before it is written, like an asynchronous kernel without a synchronisation."""
    output = np.zeros((*q.shape[:3], v.shape[3]), q.dtype)

    def write() -> None:
        time.sleep(0.02)
        output[...] = right(q, k, v)

    threading.Thread(target=write).start()
    return output


def too_wide_in_half(q: Any, k: Any, v: Any) -> Any:
    """Returns float32 for float16, and the right dtype otherwise."""
    output = right(q, k, v)
    return output.astype(np.float32) if q.dtype == np.float16 else output


def lse_in_half(q: Any, k: Any, v: Any, *, return_lse: bool = False) -> Any:
    """Returns lse in the dtype of q."""
    if not return_lse:
        return right(q, k, v)
    output, lse = right(q, k, v, return_lse=True)
    return output, lse.astype(q.dtype)


def huge(q: Any, k: Any, v: Any) -> Any:
    """Returns a view of more elements than fit in memory."""
    return np.broadcast_to(np.float32(0), (1 << 20, 1 << 20))


def merged(q: Any, k: Any, v: Any) -> Any:
    """Returns (B, S, H·D)."""
    output = right(q, k, v)
    batch, heads, rows, width = output.shape
    return output.swapaxes(1, 2).reshape(batch, rows, heads * width)


def without_batch(q: Any, k: Any, v: Any) -> Any:
    """Returns only the first batch."""
    return right(q, k, v)[0]


def squeezed(q: Any, k: Any, v: Any) -> Any:
    """Drops a batch of one."""
    output = right(q, k, v)
    return output[0] if len(output) == 1 else output


def nearly_transposed(q: Any, k: Any, v: Any) -> Any:
    """Computes in (B, S, H, D), and is one per cent off."""
    return heads_inside(q, k, v) * q.dtype.type(1.01)


def only_float32(q: Any, k: Any, v: Any) -> Any:
    """Refuses every other dtype."""
    if q.dtype != np.float32:
        raise TypeError("float32 only")
    return right(q, k, v)
