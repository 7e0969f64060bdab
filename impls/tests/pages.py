"""Examples of a page: its blocks of code in order, written to a folder and run as printed."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from attention_conformance.impls.tests import commands

_BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"\A(?:#!.*\n)?# (?P<name>[\w.]+)\n")


@dataclass(frozen=True)
class Example:
    """Files, the commands to type, and the end of what the last command prints."""

    title: str
    files: dict[str, str]
    commands: tuple[str, ...]
    shown: str


def examples(page: str) -> Iterator[Example]:
    """The examples of a page: each ends with a text block; the heading before it and its first command name it."""
    for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        files: dict[str, str] = {}
        commands: list[str] = []
        for block in _BLOCK.finditer(section):
            text = block["text"]
            if block["language"] == "python":
                named = _FILE.match(text)
                assert named is not None, text
                files[named["name"]] = text
            elif block["language"] == "console":
                commands += [line.removeprefix("$ ") for line in text.splitlines()]
            elif block["language"] == "text":
                yield Example(section.partition("\n")[0], files, tuple(commands), text)
                files, commands = {}, []


def run(example: Example, folder: Path) -> str:
    """The output of the last command, after the files are written and the commands before it have succeeded."""
    for name, text in example.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command in example.commands:
        words = shlex.split(command)
        if words[0] in ("pytest", "python"):
            words[:1] = [sys.executable, *(["-m", "pytest", "-p", "no:cacheprovider"] if words[0] == "pytest" else [])]
        done = commands.run(words, cwd=folder, timeout=600, env={**os.environ, "PATH": path})
        if command is not example.commands[-1]:
            assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def steady(text: str) -> str:
    """A text without the parts that differ between machines: spaces, seconds, and shares of the bound."""
    text = re.sub(r"( s in first calls),.*", r"\1", text)  # parts of the time; short ones are left out
    text = re.sub(r"\d+(\.\d+)? ?s\b( \(.*?\))?", "… s", " ".join(text.split()))
    return re.sub(r"\b\d\.\d\d\b|-{3,}|={3,}", "…", text)


def lines(text: str) -> list[str]:
    """The lines of a file that are neither blank nor comments."""
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
