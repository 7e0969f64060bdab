"""The call of a program as a script of its own makes it: the two files, and the program between them.

A model in a file has none: what becomes of a call's arrays depends on what the model declares (impls.onnx.fitting), and
a script that is written without opening the model would not know.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

from impls.contract import Call, Implementation
from impls.foreign.exchange import INPUT, RESULT
from impls.numpy.script import TERMS
from impls.operators import OPERATORS
from impls.script import INDENT, Snippet, by_contract, enclosed

_TARGET = "impls.foreign.program:program"

_IMPORTS = (
    "import json",
    "import subprocess",
    "import tempfile",
    "import numpy as np",
    "from safetensors.numpy import load_file, save_file",
)


def called(implementation: Implementation, call: Call) -> Snippet:
    """The call of something foreign.  Raises NotImplementedError if it is no program, or for bfloat16."""
    if implementation.target != _TARGET:
        raise NotImplementedError("no script of a model in a file")
    if call.dtype == "bfloat16":
        raise NotImplementedError("safetensors.numpy reads no bfloat16")
    words = [json.dumps(word, ensure_ascii=False) for word in shlex.split(implementation.source)]
    found = ", ".join(f'results["{name}"]' for name in call.results())
    lines = [
        "def program(**given):",
        f'{INDENT}arrays = {{name: np.array(a, order="C") for name, a in given.items() if isinstance(a, np.ndarray)}}',
        f"{INDENT}options = {{name: json.dumps(a) for name, a in given.items() if name not in arrays}}",
        f'{INDENT}options["operator"] = "{call.operator}"',
        f"{INDENT}with tempfile.TemporaryDirectory() as folder:",
        f'{INDENT * 2}save_file(arrays, f"{{folder}}/{INPUT}", options)',
        enclosed("subprocess.run([", [*words, "folder"], "], check=True)", 2),
        f'{INDENT * 2}results = load_file(f"{{folder}}/{RESULT}")',
        f"{INDENT}return {found}",
    ]
    names = OPERATORS[call.operator].arguments
    given = replace(call, options=tuple(item for item in call.options if item[1] is not None))
    arguments = (*(f"{name}={name}" for name in names), *by_contract(given)[len(names) :])
    terms = replace(TERMS, packages=("safetensors",))
    return Snippet("program", arguments, terms, _IMPORTS, "\n".join(lines))
