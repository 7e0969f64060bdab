"""Runs scripts one after the other, without this suite: the same as a fresh process for each, at the cost of one.

``python -I repro_runner.py SCRIPT…`` prints a line of JSON for each: its exit code (1 for an exception, as Python's
own) and what it printed.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import sys
import traceback

#: The suite's package, which no script may import.
OWN = "attention_conformance"


def main(paths: list[str]) -> None:
    """Run every script; drop what the scripts and libraries print elsewhere."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.modules[OWN] = None  # type: ignore[assignment] # None makes an import fail
    for path in paths:
        code, text = _run(path)
        print(json.dumps([path, code, text]), file=answers, flush=True)


def _run(path: str) -> tuple[int, str]:
    if "jax" in sys.modules:  # as in a fresh process
        sys.modules["jax"].config.update("jax_enable_x64", False)
    if "torch" in sys.modules:
        sys.modules["torch"].backends.mha.set_fastpath_enabled(True)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            runpy.run_path(path, run_name="__main__")
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=printed)
        return (error.code if isinstance(error.code, int) else int(error.code is not None)), printed.getvalue()
    except Exception:
        return 1, printed.getvalue() + traceback.format_exc()
    return 0, printed.getvalue()


if __name__ == "__main__":
    main(sys.argv[1:])
