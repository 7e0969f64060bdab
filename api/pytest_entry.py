"""The pytest plugin of every run: it registers the suite's plugins where the command line names the suite.

``pytest conformance`` and ``pytest bench`` work in every folder that has no such folder of its own.  Any other run gets
no option, no hook and no import of NumPy from here.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

#: The folders that may be named on the command line from anywhere, and the plugins that a run of them registers.
ROOMS = {
    "conformance": ("attention_conformance.conformance.plugin",),
    "bench": ("attention_conformance.conformance.plugin", "attention_conformance.bench.plugin"),
}

#: What a room needs beyond the core; the extra that brings it has the room's name.
NEEDS = {"bench": ("pytest_benchmark", "rich", "scipy")}

#: Options of the suite without a value, after which a room's name is not taken for a value.
FLAGS = ("--in-process", "--invariance", "--memory", "--no-memory", "--quick", "--resume")


def _root() -> Path:
    """The folder that has the rooms: the package itself, or in a checkout the folder above ``api``."""
    here = Path(__file__).resolve().parent
    return here.parent if here.name == "api" else here


def suite_arguments(arguments: Sequence[str], unknown: Sequence[str], root: Path) -> dict[int, str]:
    """The arguments that name the suite, by their index, as paths.

    Parameters
    ----------
    arguments
        The command line.
    unknown
        Arguments that pytest does not know, before the suite's options are added.
    root
        The folder of the rooms.

    Returns
    -------
    dict
        Index in ``arguments`` to the path that it names.  A room's name counts if there is no such file or folder,
        unless it may be the value of an option that another conftest adds.
    """
    found = {}
    for index, argument in enumerate(arguments):
        if argument.startswith("-"):
            continue
        name, colons, test = argument.partition("::")
        before = arguments[index - 1] if index else ""
        if os.path.exists(name):
            if Path(name).resolve().is_relative_to(root):
                found[index] = argument
        elif name.rstrip("/") in ROOMS and not (before.startswith("-") and before in unknown and before not in FLAGS):
            found[index] = f"{root / name.rstrip('/')}{colons}{test}"
    return found


def lacking(room: str) -> str:
    """The sentence about packages that a room needs and that are not installed; "" if all are.

    Parameters
    ----------
    room
        Name of a folder, such as "bench".

    Returns
    -------
    str
        One sentence with the extra that brings it.
    """
    absent = [name for name in NEEDS.get(room, ()) if importlib.util.find_spec(name) is None]
    return f"{room} needs {', '.join(absent)}: pip install 'attention-conformance[{room}]'" if absent else ""


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Register the suite's plugins in a run that names the suite."""
    unknown = parser.parse_known_and_unknown_args(args)[1]
    named = suite_arguments(args, unknown, _root())
    if not named:
        return
    paths = early_config.known_args_namespace.file_or_dir
    for index, path in named.items():
        paths[:] = [path if each == args[index] else each for each in paths]
        args[index] = path
    for path in named.values():
        for plugin in ROOMS.get(_room(path), ()):
            if early_config.pluginmanager.has_plugin(plugin):
                continue
            if lacking(_room(path)):
                raise pytest.UsageError(lacking(_room(path)))
            early_config.pluginmanager.import_plugin(plugin)


def _room(path: str) -> str:
    """The room that a path of the suite is in, "" for none."""
    parts = Path(path.partition("::")[0]).resolve().relative_to(_root()).parts
    return parts[0] if parts else ""
