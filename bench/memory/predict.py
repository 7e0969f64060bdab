"""Memory that a cell needs, predicted before it begins.

The model, for a cell on the CPU, in bytes:

    3 · inputs here, and 6 · inputs in the worker     (SETS_HERE, SETS_THERE)
    + results here, and 2 · results in the worker     (as NumPy arrays, read twice)
    + what the call itself takes
    + what the check of the results takes here

*The call* takes its results and SQUARE arrays of B·H·Sq·Sk numbers, in float32 or wider, unless a shorter workload of
the family was measured.  Then it takes the bytes that the process held for the shorter one, times the ratio of the
scores, but at most those bytes and these arrays; or, if its implementation is *known to hold no square array*, times
the ratio of inputs and results.  That is known if a call of at least PROOF scores (bench.analysis.fits) held less than
one byte a score: not even a boolean mask of that shape fits.  (Smaller calls prove nothing, as an allocator serves
arrays of up to 32 MiB from memory that the process has already.)  Held bytes count from before a process's first cell,
so that memory which a library keeps for later calls is not missed.

On another device inputs and results are counted as here, but the device's own memory is unknown: a call that does not
fit there raises, and is skipped with the exception's text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy)
import numpy as np

from attention_conformance.bench.analysis.fits import PROOF
from attention_conformance.bench.validity.checks import SEQUENCES, checked_heads, checked_rows
from attention_conformance.bench.workloads import arguments
from attention_conformance.bench.workloads.workload import PACKED, Workload
from attention_conformance.conformance.bounds.sdpa import BLOCK_ELEMENTS

#: Sets of inputs at once: here, for the checks, the first one, a fresh one, and a copy on the way; in the worker the
#: rotated sets, the first as NumPy arrays, a fresh one, and its copy on the way to the library.
SETS_HERE, SETS_THERE = 3, arguments.SETS + 3

#: Arrays of B·H·Sq·Sk numbers that an implementation is assumed to hold at once.  Measured with the built-ins at B=1,
#: H=8, S=2048 in float32, where one is 128 MiB: NumPy written out 3.3 (scores, shifted scores, their exponentials), the
#: same as a layer 3.5, flex_attention and the ONNX reference 4.3; gradients in NumPy 4.2, by JAX 9.2.
SQUARE = {"sdpa": 5, "mha": 5, "sublayer": 5, "sdpa_grad": 10, "mha_grad": 10, "varlen": 5, "paged": 5}

#: Arrays of float64 that a check holds at once: of recomputed scores, of keys and values (one head per query head), of
#: blocks, and of the projections of a layer.  tests/test_predict.py measures that a check takes no more.
SCORE_ARRAYS, KEY_ARRAYS, BLOCK_ARRAYS, PROJECTION_ARRAYS = 24, 4, 3, 8
#: Recomputed scores in a check of gradients, which also has those of a softcap and a bias.
GRADIENT_SCORE_ARRAYS = 36

#: Arrays of the parts' outputs, in the checked rows, that a check of merge holds at once.
MERGE_ARRAYS = 8

#: Bytes of a number of the reference.
WIDE = 8


def _bytes(shapes: Mapping[str, tuple[int, ...]], dtype: str) -> int:
    return sum(math.prod(s) * np.dtype(arguments.dtype_of(name, dtype)).itemsize for name, s in shapes.items())


def input_bytes(w: Workload, dtype: str) -> int:
    """Bytes of one set of inputs."""
    return _bytes(arguments.shapes(w), dtype)


def result_bytes(w: Workload, dtype: str) -> int:
    """Bytes of the results."""
    return _bytes(arguments.results(w), dtype)


def scores(w: Workload) -> int:
    """Numbers in a square array, B·H·Sq·Sk."""
    return w.batch * w.heads * w.length * w.keys


def quadratic_bytes(w: Workload, dtype: str) -> int:
    """Bytes that a call of an implementation with square arrays takes."""
    if w.operator == "merge":  # the outputs once in float32, and once times their weights
        return result_bytes(w, dtype) + 2 * scores(w) * w.width * max(np.dtype(dtype).itemsize, 4)
    return result_bytes(w, dtype) + SQUARE[w.operator] * scores(w) * max(np.dtype(dtype).itemsize, 4)


def holds_no_square(w: Workload, held: int) -> bool:
    """Whether a call for which the process held ``held`` bytes proves that its implementation has no square array."""
    return scores(w) >= PROOF and held < scores(w)


def check_bytes(w: Workload) -> int:
    """Bytes that a check takes, in float64."""
    if w.operator == "merge":
        return WIDE * MERGE_ARRAYS * w.batch * w.heads * min(checked_rows(w), w.length) * w.keys * w.width
    if w.kind in PACKED:  # sequence by sequence; the expected rows of each are kept
        rows = min(checked_rows(w), w.length)
        of_keys = w.heads * w.keys
        kept = 2 * min(w.batch, SEQUENCES + 1) * rows * w.heads * w.value_width
        block = BLOCK_ARRAYS * max(BLOCK_ELEMENTS, of_keys * w.value_width)
        return WIDE * (SCORE_ARRAYS * rows * of_keys + KEY_ARRAYS * of_keys * (w.width + w.value_width) + kept + block)
    if w.operator == "mha_grad":
        return WIDE * (SCORE_ARRAYS * scores(w) + PROJECTION_ARRAYS * 4 * w.tokens * w.heads * w.width)
    if w.is_gradient:
        heads = checked_heads(w) * (w.heads // w.kv_heads)
        rows, heads_of_all = w.length, w.batch * heads
    else:
        rows, heads_of_all = min(checked_rows(w), w.length), w.batch * w.heads
    of_keys = heads_of_all * w.keys
    block = max(BLOCK_ELEMENTS, of_keys * w.value_width)
    score_arrays = GRADIENT_SCORE_ARRAYS if w.is_gradient else SCORE_ARRAYS
    total = score_arrays * rows * of_keys + KEY_ARRAYS * of_keys * (w.width + w.value_width) + BLOCK_ARRAYS * block
    if w.operator in ("mha", "sublayer"):
        total += PROJECTION_ARRAYS * (w.tokens + w.heads * w.width) * w.heads * w.width
    return WIDE * total


def needed_bytes(w: Workload, dtype: str, device: str, call: int) -> int:
    """Bytes that a cell needs of this machine, including ``call`` bytes of the call itself."""
    return here_bytes(w, dtype) + there_bytes(w, dtype, device, call)


def here_bytes(w: Workload, dtype: str) -> int:
    """Bytes that a cell needs in this process; the cells of a round need them once, as one is checked at a time."""
    return SETS_HERE * input_bytes(w, dtype) + result_bytes(w, dtype) + check_bytes(w)


def there_bytes(w: Workload, dtype: str, device: str, call: int) -> int:
    """Bytes that a cell needs in its worker; results count twice, as they are copied and read again."""
    return SETS_THERE * input_bytes(w, dtype) + 2 * result_bytes(w, dtype) + (call if device == "cpu" else 0)
