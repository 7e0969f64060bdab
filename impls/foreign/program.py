"""Program in any language as an implementation: one process per call, with two safetensors files exchanged.

Every language reads safetensors with a few lines.  ``input.safetensors`` holds the arrays under the names of the
contract, and in the metadata of its header, as texts, the operator and every option that is given: ``true``, ``0.125``,
``[3, null]``, each value written as JSON.  ``result.safetensors`` holds the results under their names.

``program DIR`` reads ``DIR/input.safetensors`` and writes ``DIR/result.safetensors``.  Its exit status is the outcome:
0 done, 77 unsupported, any other an error; its output is the reason.  ``program --describe`` may print a description as
JSON: operator, keywords, dtypes, profiles, layout, and the sizes that it takes.

A model in a file has no script of its own: what happens to a call's arrays depends on the model's declarations, and
scripts are written without opening the model.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import psutil

from attention_conformance.impls import strict
from attention_conformance.impls.contract import Call, Function, Implementation, ImplementationError
from attention_conformance.impls.envelope import ATTRIBUTES, Envelope
from attention_conformance.impls.foreign.declared import Declared, Foreign, known_keywords, known_operator
from attention_conformance.impls.loading import nearest
from attention_conformance.impls.numpy.script import TERMS
from attention_conformance.impls.operators import OPERATORS
from attention_conformance.impls.process import limits
from attention_conformance.impls.process.pool import STDERR_BYTES, STDERR_LINES, Crashed, cause
from attention_conformance.impls.process.worker import SCRATCH
from attention_conformance.impls.script import INDENT, Snippet, by_contract, enclosed

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

#: The status of a call that the program does not support; in GNU's tools the status of a skipped test.
UNSUPPORTED = 77

#: Seconds that ``--describe`` may take.
DESCRIBE_TIMEOUT = 30.0

#: Keys that ``--describe`` may print.
_KEYS = ("operator", "keywords", "dtypes", "profiles", "layout", *ATTRIBUTES)

#: Signals of crashed programs, which a shell reports as 128 + the number: no program refuses its input with them.
_BROKEN = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGKILL)

#: Target of an implementation that is a program.
_TARGET = "attention_conformance.impls.foreign.program:program"

#: Imports of a script that calls a program.
_IMPORTS = (
    "import json",
    "import subprocess",
    "import tempfile",
    "import numpy as np",
    "from safetensors.numpy import load_file, save_file",
)


def metadata(call: Call) -> dict[str, str]:
    """The operator and the options that a call gives; an option that is None is not given."""
    given = {name: json.dumps(value) for name, value in call.options if value is not None}
    return {"operator": call.operator, **given}


def write(folder: Path, arrays: Mapping[str, np.ndarray], call: Call) -> None:
    """Write the input of a call into a folder."""
    from safetensors.numpy import save

    # The package writes the memory of an array unchanged, so it must be in order.
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


class Program(Foreign):
    """A command and its description of itself."""

    def __init__(self, command: tuple[str, ...], declared: Declared) -> None:
        super().__init__(declared)
        self.command = command
        self.who = Path(command[0]).name

    def prepared(self, call: Call) -> Function:
        """The function that runs the program once."""

        def run(**arrays: np.ndarray) -> tuple[np.ndarray, ...]:
            with tempfile.TemporaryDirectory(prefix="attention-", dir=os.environ.get(SCRATCH)) as name:
                folder = Path(name)
                write(folder, arrays, call)
                status, printed = _run((*self.command, name))
                _judge(status, printed, self.who)
                try:
                    return read(folder, call.results())
                except ValueError as error:  # not a refusal of the input: the program said that it was done
                    raise Crashed(f"{self.who} ended with status 0: {error}", printed) from None

        return run


def program(command: str) -> Program:
    """The program of a command line.  Raises ImplementationError if it cannot be run, or describes what is unknown."""
    words = tuple(shlex.split(command))
    return Program(words, _described(words))


def _described(words: tuple[str, ...]) -> Declared:
    """Output of ``--describe``, or the assumption without it: sdpa in float32 and no keyword."""
    who = Path(words[0]).name
    try:
        done = subprocess.run(  # noqa: S603  (what the user plugs in is run)
            [*words, "--describe"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=DESCRIBE_TIMEOUT,
            check=False,
        )
    except OSError as error:
        raise ImplementationError(f"{who} cannot be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise ImplementationError(f"{who} --describe did not end within {DESCRIBE_TIMEOUT:g} s") from None
    try:
        described = strict.loads(done.stdout) if done.returncode == 0 else None
    except strict.NotJson:  # it printed something else, as a program without such an option does
        described = None
    except strict.StrictError as error:
        raise ImplementationError(error.of(f"{who} --describe")) from None
    return _declared(f"{who} --describe", described) if isinstance(described, dict) else Declared()


def _declared(who: str, described: dict[str, Any]) -> Declared:
    for key in described:
        if key not in _KEYS:
            raise ImplementationError(f"{who}: {key!r} is not known{nearest(key, _KEYS)}")
    operator = known_operator(who, str(described.get("operator", "sdpa")))
    for key in ("keywords", "dtypes"):
        if not isinstance(described.get(key, []), list) or not all(
            isinstance(each, str) for each in described.get(key, [])
        ):
            raise ImplementationError(f"{who}: {key} is {described[key]!r}, expected a list of texts")
    limits = {key: value for key, value in described.items() if key in ATTRIBUTES}
    try:
        Envelope.declared(limits, OPERATORS[operator].keywords)
    except (TypeError, ValueError) as error:
        raise ImplementationError(f"{who}: {error}") from None
    return Declared(
        operator,
        known_keywords(who, operator, described.get("keywords", [])),
        tuple(described.get("dtypes", Declared.dtypes)),
        described.get("profiles", {}),
        described.get("layout", Declared.layout),
        limits,
    )


def _run(words: tuple[str, ...]) -> tuple[int, str]:
    """The exit status, and the last lines that were printed.  Raises Crashed for a program that prints without end.

    Output goes into a file: a pipe would be waited for as long as any process that the program left behind holds it.
    The process stays in the worker's session, so it ends with the worker.
    """
    ended = threading.Event()
    with tempfile.TemporaryFile() as printed:
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed) as process:  # noqa: S603
            # A thread checks this, as waiting with a time limit would notice late that the program has ended.
            looking = threading.Thread(target=_bounded, args=(process, printed.fileno(), ended), daemon=True)
            looking.start()
            try:
                status = process.wait()
            finally:
                ended.set()
                looking.join()
        size = os.fstat(printed.fileno()).st_size
        text = os.pread(printed.fileno(), STDERR_BYTES, max(0, size - STDERR_BYTES)).decode(errors="replace")
    lines = "\n".join([line for line in text.splitlines() if line.strip()][-STDERR_LINES:])
    if size > limits.PRINTED and status == -signal.SIGKILL:
        who = Path(words[0]).name
        raise Crashed(f"{who} was stopped: it printed more than {limits.size_text(limits.PRINTED)}", lines)
    return status, lines


def _bounded(process: subprocess.Popen[bytes], printed: int, ended: threading.Event) -> None:
    """End a program, and what it started, once it has printed too much."""
    while not ended.wait(limits.LOOK):
        if os.fstat(printed).st_size > limits.PRINTED:
            with contextlib.suppress(psutil.Error):
                for each in psutil.Process(process.pid).children(recursive=True):
                    with contextlib.suppress(psutil.Error):
                        each.kill()
            process.kill()
            return


def _judge(status: int, printed: str, who: str) -> None:
    """Raise the exception that an exit status means."""
    status = 128 - status if status - 128 in _BROKEN else status
    rest, _, last = printed.rpartition("\n")
    if status == UNSUPPORTED:
        raise NotImplementedError(last or f"{who} gives no reason")
    if status < 0:
        raise Crashed(f"{who}: {cause(status)}", printed)
    if status:
        raise RuntimeError(f"{who} ended with exit status {status}: {last or 'it printed nothing'}\n{rest}".strip())


def called(implementation: Implementation, call: Call) -> Snippet:
    """The call of a program in a script of its own.

    Parameters
    ----------
    implementation
        Implementation, whose source is the command line of the program.
    call
        The dtype, shapes and options of the case.

    Returns
    -------
    Snippet
        Parts of a script: function, arguments, terms, imports and definition.

    Raises
    ------
    NotImplementedError
        For a model in a file, and for bfloat16, which ``safetensors.numpy`` does not read.
    """
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
