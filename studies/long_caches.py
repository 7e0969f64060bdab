"""Long caches: time and memory of a check of one query over up to 2²⁰ keys in pages.

Every length is checked in a process of its own, whose memory begins with the arrays of the call.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from importlib import metadata
from typing import Any

import numpy as np

from attention_conformance import assert_paged_close
from attention_conformance.impls.process.pool import Worker
from studies.common import Measured, Study, markdown, peak_bytes, sentence

#: Keys of the one sequence.
LENGTHS = (2**16, 2**18, 2**20)
#: Query heads over one key head, their width, and the size of a page.
HEADS, WIDTH, PAGE = 2, 64, 16

#: Seconds that one length may take.
TIMEOUT = 1200.0

GIB = 2**30


def decoding(keys: int) -> tuple[np.ndarray, ...]:
    """Output, q, caches, boundaries, table and lengths of one query over ``keys`` keys, in shuffled pages."""
    rng = np.random.default_rng(keys)
    pages = -(-keys // PAGE)
    table = rng.permutation(pages).astype(np.int32)[None]
    k_cache, v_cache = (rng.standard_normal((pages, PAGE, 1, WIDTH), dtype=np.float32) for _ in range(2))
    q = rng.standard_normal((1, HEADS, WIDTH), dtype=np.float32)
    k, v = (cache[table[0]].reshape(-1, WIDTH)[:keys] for cache in (k_cache, v_cache))
    scores = q[0] @ k.T / np.sqrt(WIDTH, dtype=np.float32)
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    output = (powers / powers.sum(axis=1, keepdims=True) @ v)[None]
    return output, q, k_cache, v_cache, np.array([0, 1], np.int32), table, np.array([keys], np.int32)


def checked(keys: int) -> dict[str, float]:
    """Seconds of the check, bytes of the arrays, the most bytes of the process, and the share of the bound."""
    arrays = decoding(keys)
    started = time.perf_counter()
    share = assert_paged_close(*arrays, is_causal=True).share
    seconds = time.perf_counter() - started
    peak = peak_bytes()
    return {"seconds": seconds, "arrays": sum(a.nbytes for a in arrays), "peak": peak, "share": share}


def measure(keys: Sequence[int] = LENGTHS) -> dict[str, Any]:
    """Every length, each in a fresh process."""
    found = {}
    for length in keys:
        with closing(Worker({})) as worker:
            found[str(length)] = worker.call("studies.long_caches:checked", length, timeout=TIMEOUT)
    return {"lengths": found, "threads": 1, "versions": {"numpy": metadata.version("numpy")}}


def table(found: Measured) -> str:
    """Markdown: seconds and GiB by length."""
    rows = [
        [f"{int(keys):,}", f"{one['seconds']:.1f}", f"{one['arrays'] / GIB:.2f}", f"{one['peak'] / GIB:.2f}"]
        for keys, one in found["lengths"].items()
    ]
    shape = f"One query of {HEADS} heads over one key head, D = {WIDTH}, pages of {PAGE}, float32, causal"
    return f"{markdown(['keys', 'seconds', 'arrays GiB', 'most GiB'], rows, left=())}\n\n{sentence(found, shape)}"


STUDY = Study(
    "long_caches",
    "seconds and memory of a check of up to 2²⁰ keys in pages",
    measure,
    {"conformance/ASSERT_CLOSE.md": table},
    {"--keys": {"type": int, "nargs": "+", "default": LENGTHS, "help": "of the sequence (default: %(default)s)"}},
)
