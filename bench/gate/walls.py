"""Walls of a gate's worker: they keep a candidate from parts of its process, and notice what it does there.

They are set up before the candidate is loaded.  All of them are in the candidate's own process, so determined code can
get round them (bench/GATE.md says how); the parent decides about values and times.
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import importlib.util
import math
import os
import pickle
import random
import re
import subprocess
import sys
import threading
from types import CodeType, FrameType, FunctionType
from typing import Any

import numpy.testing

from attention_conformance.bench.gate import hidden
from attention_conformance.bench.gate.noticed import Callers, callers, count, frame_of, notice

#: Modules whose functions must not change, and classes whose functions must not.
WATCHED = (
    "builtins",
    "time",
    "gc",
    "os",
    "math",
    "pickle",
    "random",
    "threading",
    "numpy",
    "numpy.linalg",
    "numpy.random",
    "numpy.testing",
    "torch",
    "torch.cuda",
    "torch.autograd",
    "torch.autograd.profiler",
    "torch.linalg",
    "torch.testing",
    "torch.nn.functional",
    "jax",
    "jax.numpy",
)
WATCHED_CLASSES = (("torch", "Tensor"), ("torch.cuda", "Event"), ("torch.cuda", "Stream"))

_IMPORTED = (builtins, gc, math, pickle, random, threading, numpy.testing)  # so that they can be watched


# The network.


def no_network() -> str:
    """Put this thread, and those that it starts, into a network namespace of their own where the system permits.

    Returns the mechanism that keeps the candidate from the network.
    """
    try:
        isolated = sys.platform.startswith("linux") and ctypes.CDLL(None).unshare(0x40000000) == 0  # CLONE_NEWNET
    except (OSError, AttributeError):
        isolated = False
    return "a network namespace of its own, and an audit hook" if isolated else "an audit hook of Python alone"


# What is audited.

_LOOKS = {
    "gc.get_objects": "it searches the objects of the process (gc.get_objects)",
    "gc.get_referrers": "it searches the objects of the process (gc.get_referrers)",
    "gc.get_referents": "it searches the objects of the process (gc.get_referents)",
    "sys._getframe": "it looks at the frames of its callers",
    "sys._current_frames": "it looks at the frames of other threads",
    "sys._current_exceptions": "it looks at the frames of other threads",
    "sys.settrace": "it traces the process",
    "sys.setprofile": "it traces the process",
}

#: Attributes that lead to a frame and whose reading is audited.
_FRAMES = ("tb_frame", "gi_frame", "cr_frame", "ag_frame")

#: Functions of Python's C library that lead to its frames, objects, threads and modules.
_INTERPRETER = re.compile(
    r"_?Py(Eval_Get|Frame|Thread|Interpreter|GC_|Object_GC|Import_GetModule|Sys_|Unstable_|Gen_|TraceBack)\w*"
)
_NETWORK = ("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto", "urllib.Request")
_PROGRAMS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "pty.spawn")
_KILLS = ("os.kill", "os.killpg", "signal.pthread_kill")
_LISTED = ("os.listdir", "os.scandir")

#: The file for which torch's compiler starts a Python: it tests whether this processor can load a library built for it.
PROBES = os.path.join("torch", "_inductor", "cpu_vec_isa.py")

_inside = threading.local()


def watch(by: Callers, own: str, problem: str = "") -> None:
    """Begin to audit.  A hook cannot be removed.

    Parameters
    ----------
    by
        Finds whose code a frame runs.
    own, problem
        The candidate's file, and its task's.
    """
    theirs = {problem, importlib.util.cache_from_source(problem)} if problem and problem != own else set()
    suite, this, parent = hidden.rooms(), os.getpid(), os.getppid()
    known = {name for name in sys.modules if "." not in name}

    def seen(event: str, arguments: tuple[Any, ...], frame: FrameType) -> None:
        if event in _LOOKS:
            if by.direct(frame):
                notice("looks", _LOOKS[event])
        elif event == "object.__getattr__":
            if arguments[1] in _FRAMES and by.traced(frame):
                notice("looks", f"it looks at the frames of its callers ({arguments[1]})")
        elif event == "ctypes.dlsym":
            if _INTERPRETER.fullmatch(str(arguments[1])) and by.direct(frame):
                notice("looks", f"it reaches into the interpreter ({arguments[1]})")
        elif event in ("compile", "code.__new__"):
            file = arguments[1]
            if (
                isinstance(file, str)
                and file
                and not file.startswith("<")
                and by.direct(frame)
                and not by.foreign(file)
            ):
                notice("looks", f"it makes code in the name of {os.path.basename(file)}")
        elif event in _NETWORK:
            notice("network", f"it asks for the network ({event})")
            raise PermissionError("there is no network in the gate's worker")
        elif event == "open":
            _file_opened(arguments[0], _writes(*arguments[1:3]), frame)
        elif event in _LISTED:
            _of_a_process(_real("." if arguments[0] is None else arguments[0]), frame)
        elif event in _PROGRAMS:
            if by.anywhere(frame):
                _started(event, arguments, frame)
        elif event in _KILLS and arguments and arguments[0] == parent:
            notice("parent", "it sends a signal to the gate")
            raise PermissionError("a candidate may not signal the gate")

    def _of_a_process(real: str, frame: FrameType) -> None:
        """Refuse the system's files on other processes, and those on this one that name its judge."""
        found = PROCESS_FILE.fullmatch(real)
        if found is None:
            return
        number, what = int(found["number"]), found["what"] or ""
        if number == parent or (number != this and by.anywhere(frame)):
            whose = "the gate's process" if number == parent else "another process"
            notice("parent", f"it opens files of {whose}")
            raise PermissionError("a candidate may not read other processes")
        if what == "mem" or (what in ("environ", "cmdline") and by.anywhere(frame)):
            kept = "the memory" if what == "mem" else "the arguments and the environment"
            notice("looks", f"it opens {kept} of a process")
            raise PermissionError("a candidate may not read that")

    def _file_opened(path: Any, writes: bool, frame: FrameType) -> None:
        if not isinstance(path, (str, bytes)):
            return
        name, real = os.fsdecode(path), _real(path)
        _of_a_process(real, frame)
        if writes and LIBRARY_FILE.search(name) is not None and by.anywhere(frame):
            stem = os.path.basename(name).partition(".")[0]
            if stem in known and real != own:
                notice("files", f"it writes {os.path.basename(name)}, which would be imported in a library's place")
                raise PermissionError("no library is written in the gate's worker")
        if real in theirs:
            count(f"the problem's own {os.path.basename(problem)}")
        inside = real != own and real.startswith(suite) and "/tests/" not in real
        if inside and PACKAGE_FILE.search(real) is not None and by.anywhere(frame) and not by.shown(frame):
            notice("suite", f"it opens {os.path.basename(real)}, a file of the suite")
            raise PermissionError("candidates may not use the suite's files")

    def _started(event: str, arguments: tuple[Any, ...], frame: FrameType) -> None:
        program = os.fsdecode(arguments[0]) if arguments and isinstance(arguments[0], (str, bytes)) else event
        python = os.path.basename(program).startswith("python")
        python |= os.path.realpath(program) == os.path.realpath(sys.executable)
        files = (each.f_code.co_filename for each in callers(frame))
        asking = next((each for each in files if each != subprocess.__file__), "")
        if python and not asking.endswith(PROBES):
            notice("program", "it starts another Python, outside this process's walls")
            raise PermissionError("no Python is started in the gate's worker")
        notice("started", f"it starts {os.path.basename(program)}")

    events = frozenset(
        (
            *_LOOKS, *_NETWORK, *_PROGRAMS, *_KILLS, *_LISTED, "open", "compile", "code.__new__", "ctypes.dlsym",
            "object.__getattr__",
        )
    )  # fmt: skip

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in events or getattr(_inside, "hook", False):
            return
        _inside.hook = True
        try:
            seen(event, arguments, frame_of(1))
        finally:
            _inside.hook = False

    sys.addaudithook(hook)


def _real(path: Any) -> str:
    """The path without links and dots, also that of an open folder."""
    name = f"/proc/self/fd/{path}" if isinstance(path, int) else os.fsdecode(path)
    return os.path.realpath(name)


def _writes(mode: Any, flags: Any) -> bool:
    """Whether a file is opened for writing."""
    return (isinstance(mode, str) and any(each in mode for each in "wax+")) or bool(
        isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
    )


#: The system's files on a process, or on a thread of it; and files that are imported.
PROCESS_FILE = re.compile(r"/proc/(?P<number>\d+)(/task/\d+)?(/(?P<what>.*))?")
LIBRARY_FILE = re.compile(r"\.(pyc?|so|pth)$")

#: Names that may be files of the suite; others are passed quickly.
PACKAGE_FILE = re.compile(r"\.pyc?$|\.toml$|\.json$")


# What must not change.


class Integrity:
    """The functions of the watched modules and of the suite as this object found them, and torch's registrations."""

    def __init__(self) -> None:
        self._was: list[tuple[Any, str, str, Any, CodeType | None]] = []
        self._classes: list[tuple[type, str, frozenset[str]]] = []
        for name in WATCHED:
            if name in sys.modules:
                self._remember(sys.modules[name], name)
        for name, of_suite in hidden.modules().items():
            self._remember(of_suite, name)
        for module, name in WATCHED_CLASSES:
            held = getattr(sys.modules.get(module), name, None)
            if isinstance(held, type):
                self._remember(held, f"{module}.{name}")
                self._classes.append((held, f"{module}.{name}", frozenset(vars(held))))
        self._kernels, self._hooks = _kernels(), _hooks()

    def _remember(self, holder: Any, name: str) -> None:
        for attribute, value in list(vars(holder).items()):
            if callable(value) and attribute != "__builtins__":
                code = value.__code__ if isinstance(value, FunctionType) else None
                self._was.append((vars(holder), name, attribute, value, code))

    def broken(self) -> list[str]:
        """Changes by the candidate: replaced functions, methods that hide others, registrations."""
        replaced = [
            f"it replaced {name}.{attribute}"
            for held, name, attribute, value, code in self._was
            if (held.get(attribute) is not value and not _of_dynamo(held.get(attribute), value))
            or (code is not None and value.__code__ is not code)
        ]
        for kind, name, had in self._classes:
            for each in vars(kind).keys() - had:
                if any(each in vars(base) for base in kind.__mro__[1:]):
                    replaced.append(f"it replaced {name}.{each}")
        return replaced + _registered(self._kernels, self._hooks)


def _of_dynamo(value: Any, was: Any) -> bool:
    """Whether a function is the old one in the wrapper that torch's own compiler puts around it when it is imported."""
    compile_ = sys.modules.get("torch._compile")
    if compile_ is None or not isinstance(value, FunctionType) or getattr(value, "__wrapped__", None) is not was:
        return False
    held = [cell.cell_contents for cell in value.__closure__ or ()]
    return value.__code__.co_filename == compile_.__file__ and all(each is was for each in held if callable(each))


#: Torch's lists of hooks on all modules, and the keys of operators' built-in kernels.
_HOOKS = re.compile(r"_global_\w*hooks")
_KERNELS = re.compile(r"aten/\S+/(CPU|CUDA|CompositeImplicitAutograd|AutogradCPU|AutogradCUDA)")


def _kernels() -> frozenset[str] | None:
    """Keys of the kernels that Python registered; None without torch."""
    library = sys.modules.get("torch.library")
    return frozenset(library._impls) if library is not None else None


def _hooks() -> frozenset[str]:
    module = sys.modules.get("torch.nn.modules.module")
    names = vars(module) if module is not None else {}
    return frozenset(name for name, hooks in names.items() if _HOOKS.fullmatch(name) and hooks)


def _registered(kernels: frozenset[str] | None, hooks: frozenset[str]) -> list[str]:
    """Registrations with torch in addition to these, in words; no kernels where only the candidate has torch."""
    new = frozenset() if kernels is None else (_kernels() or frozenset()) - kernels
    found = [f"it replaced the kernel {key}" for key in sorted(new) if _KERNELS.fullmatch(key)]
    return found + [f"it put a hook on all modules, {each.removeprefix('_global_')}" for each in _hooks() - hooks]
