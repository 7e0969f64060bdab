"""Attention in NumPy on two threads that choose their exponential at the first call: with a race, a lock, or worse.

A stand-in for pytorch#188792: in ``racing``, a thread that arrives while the other one chooses gets the less accurate
exponential.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import numpy as np

#: Seconds that the choice takes: longer than the other half takes for its scores.
CHOOSING = 0.5

_chosen: dict[str, Callable[[np.ndarray], np.ndarray]] = {}
_lock = threading.Lock()
_calls = [0]


def _coarse(x: np.ndarray) -> np.ndarray:
    return np.exp(x).astype(np.float16).astype(x.dtype)


def _choose() -> Callable[[np.ndarray], np.ndarray]:
    if "exp" not in _chosen:
        _chosen["exp"] = _coarse
        time.sleep(CHOOSING)
        _chosen["exp"] = np.exp
    return _chosen["exp"]


def _locked() -> Callable[[np.ndarray], np.ndarray]:
    with _lock:
        return _choose()


def _halves(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, choose: Callable[..., Callable[..., np.ndarray]]
) -> np.ndarray:
    output = np.empty((*q.shape[:3], v.shape[3]), q.dtype)

    def half(heads: slice) -> None:
        exp = choose()
        scores = q[:, heads] @ k[:, heads].swapaxes(2, 3) / np.sqrt(q.dtype.type(q.shape[3]))
        weights = exp(scores - scores.max(axis=3, keepdims=True))
        output[:, heads] = weights / weights.sum(axis=3, keepdims=True) @ v[:, heads]

    middle = q.shape[1] // 2
    threads = [threading.Thread(target=half, args=(heads,)) for heads in (slice(0, middle), slice(middle, None))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return output


def racing(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Attention whose first call races: the second thread gets an exponential that is chosen only for now."""
    return _halves(q, k, v, _choose)


def locked(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """The same attention with the choice under a lock: right from the first call on."""
    return _halves(q, k, v, _locked)


def dying(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Attention that kills its process in the first call."""
    os.abort()


def hanging(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Attention whose first call does not return."""
    time.sleep(1000)
    return v


def raising_first(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Attention whose first call raises and whose second does not."""
    _calls[0] += 1
    if _calls[0] == 1:
        raise RuntimeError("not warm yet")
    return locked(q, k, v)


def transposed(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Output in the layout (B, S, H, D)."""
    return v.swapaxes(1, 2)
