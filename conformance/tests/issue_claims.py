"""Claims of upstream issues, each evaluated after its script in its own forked process; libraries are imported once.

Run as a program: reads ``[[script, claim], …]`` as JSON from standard input, and prints the result of each, as JSON:
"true", "false", a sentence, or the name of the signal that killed the script.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from attention_conformance.conformance.ledger.issues import modules


def evaluated(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """The result of each claim, evaluated by this file as a program."""
    done = subprocess.run(
        [sys.executable, __file__], input=json.dumps(pairs), capture_output=True, text=True, check=True, timeout=1200
    )
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def _evaluate(script: str, claim: str) -> str:
    names: dict[str, object] = {"__name__": "__main__", "error": None}
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(script, "script", "exec"), names)  # noqa: S102  (our own scripts)
    except BaseException as error:  # the claim is about whatever ends the script
        names["error"] = error
    else:
        return "the script found nothing"
    try:
        return str(bool(eval(claim, names))).lower()  # noqa: S307
    except Exception as error:
        return f"{type(error).__name__}: {error}; the script raised {names['error']!r}"


def _forked(script: str, claim: str) -> str:
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(source)
        os.dup2(2, 1)  # exporters print
        os.write(sink, _evaluate(script, claim).encode()[:4000])
        os._exit(0)
    os.close(sink)
    with os.fdopen(source, encoding="utf-8") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else said


def _main() -> None:
    pairs = json.load(sys.stdin)
    if any("TRITON_INTERPRET" in script for script, _ in pairs):
        os.environ["TRITON_INTERPRET"] = "1"  # before any library imports Triton
    for name in dict.fromkeys(name for script, _ in pairs for name in modules(script) if "." not in name):
        importlib.import_module(name)
    if any("torch.onnx.export(" in script for script, _ in pairs):
        _export_something()
    print(json.dumps([_forked(script, claim) for script, claim in pairs]))


def _export_something() -> None:
    """Export a small model first, as an exporter's imports and tables at its first model take longer than the model."""
    import torch

    torch.set_num_threads(1)  # threads do not survive a fork
    with contextlib.redirect_stdout(sys.stderr):
        torch.onnx.export(torch.nn.Identity(), (torch.ones(1),), opset_version=18, dynamo=True, verbose=False)


if __name__ == "__main__":
    _main()
