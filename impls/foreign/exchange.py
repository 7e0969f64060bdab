"""The two files that are exchanged with a program: safetensors, which every language reads with a few lines.

``input.safetensors`` holds the arrays under the names of the contract, and in the metadata of its header, as texts, the
operator and every option that is given: ``true``, ``0.125``, ``[3, null]``, each value written as JSON.
``result.safetensors`` holds the results under theirs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from impls.contract import Call

INPUT, RESULT = "input.safetensors", "result.safetensors"

#: The dtypes of results, by their names in the format.
_DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "BOOL": np.dtype(np.bool_),
}


def metadata(call: Call) -> dict[str, str]:
    """The operator and the options that a call gives; one that is None is not given."""
    given = {name: json.dumps(value) for name, value in call.options if value is not None}
    return {"operator": call.operator, **given}


def write(folder: Path, arrays: Mapping[str, np.ndarray], call: Call) -> None:
    """Write the input of a call into a folder."""
    from safetensors.numpy import save

    # The package takes the memory of an array as it lies, so it must lie in order.
    in_order = {name: np.array(array, order="C") for name, array in arrays.items()}
    (folder / INPUT).write_bytes(save(in_order, metadata=metadata(call)))


def read(folder: Path, names: Sequence[str]) -> tuple[np.ndarray, ...]:
    """The results of these names from a folder.  Raises ValueError if they are not there."""
    import safetensors

    path = folder / RESULT
    if not path.is_file():
        raise ValueError(f"it wrote no {RESULT}")
    try:
        found = dict(safetensors.deserialize(path.read_bytes()))
    except safetensors.SafetensorError as error:
        raise ValueError(f"{RESULT} is not safetensors: {error}") from None
    lacking = [name for name in names if name not in found]
    if lacking:
        raise ValueError(f"{RESULT} holds {', '.join(sorted(found)) or 'nothing'}, and no {', '.join(lacking)}")
    return tuple(_array(name, found[name]) for name in names)


def _array(name: str, found: Mapping[str, Any]) -> np.ndarray:
    if found["dtype"] not in _DTYPES:
        raise ValueError(f"{name} in {RESULT} has dtype {found['dtype']}, known are {', '.join(_DTYPES)}")
    flat = np.frombuffer(bytes(found["data"]), _DTYPES[found["dtype"]])
    return flat.reshape(found["shape"]).copy()
