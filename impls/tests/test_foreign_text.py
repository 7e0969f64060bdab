"""The forms of ``--impl`` for a model or a program, and how they are distinguished from a function."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from attention_conformance.impls.contract import Framework, ImplementationError
from attention_conformance.impls.foreign.text import foreign, read
from attention_conformance.impls.select import select


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a model, a program, and a file that is neither."""
    monkeypatch.chdir(tmp_path)
    for name in ("model.onnx", "program", "with space", "script.py", "notes.txt", "kernels.py"):
        (tmp_path / name).write_text("")
    for name in ("program", "with space", "script.py"):
        (tmp_path / name).chmod(0o755)
    return tmp_path


def test_a_model_and_what_is_said_of_it(folder: Path) -> None:
    """The model's file is found from the working folder, and the text after the colon is kept."""
    (found,) = select(["model.onnx:query=q,layout=BSHD"])
    assert (found.name, found.framework) == ("model.onnx:query=q,layout=BSHD", Framework.ONNXRUNTIME)
    assert found.source == f"{folder}/model.onnx:query=q,layout=BSHD"
    assert found.process == found.name


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("./program", ["{}/program"]),
        ("./program --flag 'one word'", ["{}/program", "--flag", "one word"]),
        ("'./with space'", ["{}/with space"]),
        ("./script.py", ["{}/script.py"]),
        ("sh program", [None, "program"]),
    ],
)
def test_a_program_and_its_arguments(folder: Path, text: str, command: list[str | None]) -> None:
    """A program is a path, quoted if need be, or a command of the search path with an argument."""
    (found,) = select([text])
    words = shlex.split(found.source)
    assert words[1:] == command[1:]
    assert Path(words[0]).is_absolute()
    assert command[0] is None or words[0] == command[0].format(folder)
    assert found.requires == ("safetensors",)


@pytest.mark.parametrize(
    "text",
    [
        "numpy-eager",
        "torch-*",
        "kernels.py:attention",
        "./kernels.py:attention@torch",
        "a folder/kernels.py:attention",
        "package.module:attention",
        "model.onnx.py:attention",
        "kernels.py",
        "./kernels.py",
    ],
)
def test_names_and_functions_are_not_foreign(folder: Path, text: str) -> None:
    """Names and functions keep their meaning."""
    assert foreign(text) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("modle.onnx", "no file modle.onnx, looked for at .*; did you mean model.onnx"),
        ("./progam", "no program ./progam, looked for at .*; did you mean program"),
        ("./notes.txt", r"\./notes\.txt is not executable: chmod \+x \./notes\.txt"),
        ("./.", r"\./\. is a folder"),
        ("./program 'open", "no closing quotation"),
        ("no-such-command --flag", "no program no-such-command on the path"),
        ("./kernels.py", "a file needs the name of its function"),
    ],
)
def test_what_is_not_there_is_refused(folder: Path, text: str, message: str) -> None:
    """A missing file is refused in one sentence, with the nearest file."""
    with pytest.raises(ImplementationError, match=message) as caught:
        select([text])
    assert "\n" not in str(caught.value)


def test_values_with_commas_stand_in_parentheses() -> None:
    """A window in parentheses is one item."""
    assert read("m", "window=(3,0),q0=q,softcap=30.0,is_causal=true").fixed == {
        "window": (3, 0),
        "softcap": 30.0,
        "is_causal": True,
    }


def test_python_is_found_as_a_command() -> None:
    """An interpreter with its script is a program."""
    found = foreign(f"{sys.executable} tool.py")
    assert found is not None
    assert shlex.split(found.source)[1:] == ["tool.py"]
