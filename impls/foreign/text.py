"""What ``--impl`` may say of something foreign: ``model.onnx:name=ours,option=value``, and ``./program --flag``."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from pathlib import Path

from impls.contract import Framework, Implementation, ImplementationError
from impls.loading import nearest

#: A model, and behind the colon what is said of it.  No shell reads anything into letters, colons, commas and equals.
_MODEL = re.compile(r"(?P<path>.*?\.onnx)(?::(?P<said>.*))?")
#: A function in a file, as ``impls.select`` reads it; the path may have spaces.
_FUNCTION = re.compile(r".*\.py:[A-Za-z_][\w.]*(@\w*)?(\+gradients)?")


def foreign(text: str) -> Implementation | None:
    """The implementation that a text names, None if it names nothing foreign.  Raises ImplementationError."""
    if _FUNCTION.fullmatch(text):
        return None
    model = _MODEL.fullmatch(text)
    return _model(text, model["path"], model["said"] or "") if model else _program(text)


def _model(text: str, place: str, said: str) -> Implementation:
    path = Path(place).resolve()
    if not path.is_file():
        raise ImplementationError(f"--impl {text}: no file {place}, looked for at {path}{_near(path)}")
    return Implementation(
        name=text,
        target="impls.onnx.file:model",
        framework=Framework.ONNXRUNTIME,
        prepare="impls.foreign.declared:prepare",
        requires=("onnxruntime", "onnx"),
        source=f"{path}:{said}",
        folder=os.getcwd(),
        summary="a model, plugged in",
    )


def _program(text: str) -> Implementation | None:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ImplementationError(f"--impl {text}: {str(error).lower()}") from None
    if not words or not (os.sep in words[0] or (len(words) > 1 and ":" not in words[0])):
        return None
    found = _executable(text, words[0])
    if found is None:
        return None
    return Implementation(
        name=text,
        target="impls.foreign.program:program",
        prepare="impls.foreign.declared:prepare",
        devices=("cpu",),
        requires=("safetensors",),
        source=shlex.join([found, *words[1:]]),
        folder=os.getcwd(),
        summary="a program, plugged in",
    )


def _executable(text: str, word: str) -> str | None:
    """The path of a program, None for what is meant as Python.  Raises ImplementationError."""
    if os.sep not in word:
        found = shutil.which(word)
        if found is None:
            raise ImplementationError(f"--impl {text}: no program {word} on the path")
        return found
    path = Path(word).resolve()
    if path.is_file() and os.access(path, os.X_OK):
        return str(path)
    if path.suffix == ".py" or ":" in word:
        return None
    if path.is_file():
        raise ImplementationError(f"--impl {text}: {word} is not executable: chmod +x {shlex.quote(word)}")
    if path.is_dir():
        raise ImplementationError(f"--impl {text}: {word} is a folder")
    raise ImplementationError(f"--impl {text}: no program {word}, looked for at {path}{_near(path)}")


def _near(path: Path) -> str:
    """Half a sentence with the files of the folder that may be meant."""
    if not path.parent.is_dir():
        return ""
    hint = nearest(path.name, [each.name for each in path.parent.iterdir() if each.is_file()])
    return hint if "did you mean" in hint else ""
