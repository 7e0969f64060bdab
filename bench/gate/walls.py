"""Walls of a gate's worker: what a candidate cannot reach in its process, and what it is seen doing there.

They are set up before the candidate is loaded.  All of them are in the candidate's own process, so code that means to
can get round them (bench/GATE.md says how); what decides about values and times is the parent's.
"""

from __future__ import annotations

import ast
import builtins
import ctypes
import functools
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import linecache
import math
import os
import pickle
import random
import re
import subprocess
import sys
import sysconfig
import threading
import tokenize
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import numpy.testing

import attention_conformance

PACKAGE = "attention_conformance"

#: Used after foreign code was loaded, and bound before.
_frame = sys._getframe

#: Variables of the parent's environment that the worker has; the others are emptied, and removed.
KEPT_VARIABLES = re.compile(
    r"PATH|HOME|USER|LANG|LC_\w+|TZ|TMPDIR|TEMP|TMP|LD_LIBRARY_PATH|DYLD_\w+|VIRTUAL_ENV|SYSTEMROOT|\w*NUM_THREADS|"
    r"\w*MAXIMUM_THREADS|NPROC|MALLOC_\w+|CUDA_\w+|NVIDIA_\w+|HIP_\w+|ROCR?_\w+|OMP_\w+|KMP_\w+|MKL_\w+|OPENBLAS_\w+|"
    r"XLA_\w+|JAX_\w+|TORCH\w*|TRITON_\w+|PYTHON(HASHSEED|MALLOC|WARNINGS)|ATTENTION_CONFORMANCE_(SCRATCH|THREADS)"
)

#: What was noticed, "kind: text" each, in order; taken by ``taken``.
_NOTICED: dict[str, None] = {}

#: Calls of libraries' own attention by name.
_COUNTS: dict[str, int] = {}

#: Modules of the suite that a worker of the gate needs once the candidate is there; no other one can be imported.
_STAYS = ("impls", "bench")

#: Own attention of libraries: functions by module, as ``name`` or ``Class.name``.
LIBRARY = {
    "jax.nn": ("dot_product_attention",),
    "flax.linen": ("dot_product_attention",),
    "flash_attn": ("flash_attn_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func"),
    "xformers.ops": ("memory_efficient_attention",),
    "flashinfer": ("single_prefill_with_kv_cache", "single_decode_with_kv_cache"),
    "torch.nn": ("MultiheadAttention.forward",),
    "onnxruntime": ("InferenceSession.run",),
}

#: Operators of torch that are attention, however they are reached.
TORCH_OPERATORS = re.compile(
    r"aten::\w*(scaled_dot_product|flash_attention|efficient_attention|native_multi_head_attention|flex_attention)\w*"
)

#: Modules whose functions must stay what they are, and classes likewise.
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
    "torch.linalg",
    "torch.testing",
    "torch.nn.functional",
    "jax",
    "jax.numpy",
)
WATCHED_CLASSES = (("torch", "Tensor"), ("torch.cuda", "Event"), ("torch.cuda", "Stream"))

_IMPORTED = (builtins, gc, math, pickle, random, threading, numpy.testing)  # so that they are there to be watched


def notice(kind: str, text: str) -> None:
    """Note something that the candidate did."""
    _NOTICED[f"{kind}: {text}"] = None


def taken() -> tuple[str, ...]:
    """What was noticed since this was last asked, and how often libraries were called."""
    found = (*_NOTICED, *(f"library: {name} {count}" for name, count in _COUNTS.items()))
    _NOTICED.clear()
    _COUNTS.clear()
    return found


# The network.


def no_network() -> str:
    """Put this thread, and those that it starts, into a network namespace of their own where the system permits.

    Returns what keeps the candidate from the network.
    """
    try:
        isolated = sys.platform.startswith("linux") and ctypes.CDLL(None).unshare(0x40000000) == 0  # CLONE_NEWNET
    except (OSError, AttributeError):
        isolated = False
    return "a network namespace of its own, and an audit hook" if isolated else "an audit hook of Python alone"


# The environment.


def hidden_environment() -> dict[str, str]:
    """In the parent: what of its environment the worker is to have without a value, and where torch compiles."""
    hidden = {name: "" for name in os.environ if not KEPT_VARIABLES.fullmatch(name)}
    return hidden | {"TORCHINDUCTOR_COMPILE_THREADS": "1"}  # else it starts Pythons, which no wall is around


def clear_environment() -> None:
    """In the worker: remove what has no value."""
    for name in [name for name, value in os.environ.items() if not value]:
        del os.environ[name]


# Imports.


def rooms() -> tuple[str, ...]:
    """The folders of the suite's own modules."""
    places = [Path(place) for place in attention_conformance.__path__]
    known = [str(place / room) + os.sep for place in places for room in ("impls", "conformance", "bench", "reports")]
    return tuple(os.path.realpath(each) + os.sep for each in known if os.path.isdir(each))


class _Finder(importlib.abc.MetaPathFinder):
    """Refuses the suite's modules, and counts the calls of libraries' attention once they are imported."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> Any:
        """None, but for modules whose functions are counted; ImportError for the suite's."""
        if fullname == PACKAGE or fullname.startswith(f"{PACKAGE}."):
            notice("suite", f"it imports {fullname}, which is not there for a candidate")
            raise ImportError(f"{fullname} cannot be imported in the gate's worker", name=fullname)
        if fullname not in LIBRARY:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _counted(fullname, module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _counted(name: str, module: ModuleType) -> None:
    """Have the calls of a library's attention counted."""
    for place in LIBRARY[name]:
        owner, _, attribute = place.rpartition(".")
        holder = getattr(module, owner, None) if owner else module
        function = getattr(holder, attribute, None)
        if function is None or getattr(function, "__wrapped_by_the_gate__", False):
            continue
        setattr(holder, attribute, _counting(f"{name}.{place}", function))


def _counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def counted(*arguments: Any, **keywords: Any) -> Any:
        _COUNTS[name] = _COUNTS.get(name, 0) + 1
        return function(*arguments, **keywords)

    counted.__wrapped_by_the_gate__ = True  # type: ignore[attr-defined]
    return counted


def close_imports() -> None:
    """From now on no other module of the suite can be imported, and its reference is not there."""
    sys.meta_path.insert(0, _Finder())
    for name in [name for name in sys.modules if name.startswith(f"{PACKAGE}.")]:
        if name.split(".")[1] not in _STAYS:
            del sys.modules[name]
    for name in LIBRARY:
        if name in sys.modules:
            _counted(name, sys.modules[name])


def count_torch(run: Callable[[], Any]) -> Any:
    """What ``run`` returns, with torch's own attention counted, however it is reached."""
    torch = sys.modules.get("torch")
    if torch is None:
        return run()
    with torch.autograd.profiler.profile(use_kineto=False) as seen:
        returned = run()
    names = [each.name for each in seen.function_events if TORCH_OPERATORS.fullmatch(each.name)]
    for name in names:
        _COUNTS[name] = _COUNTS.get(name, 0) + 1
    return returned


# What it says of the suite.


def named(text: str) -> str:
    """Where a candidate's code has the suite's name in a string, as what it does there may be for the judge alone.

    Docstrings, and what is done when the file is run as a program, are not looked at.
    """
    tree = ast.parse(text)
    passed: set[ast.AST] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            passed.add(body[0].value)
        if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test):
            passed.update(each for inner in node.body for each in ast.walk(inner))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node not in passed and PACKAGE in str(node.value).replace("-", "_"):
            return f"line {node.lineno} names the suite, so that what it does may be for the judge alone"
    return ""


# What is audited.

_LOOKS = {
    "gc.get_objects": "it searches the objects of the process (gc.get_objects)",
    "gc.get_referrers": "it searches the objects of the process (gc.get_referrers)",
    "gc.get_referents": "it searches the objects of the process (gc.get_referents)",
    "sys._getframe": "it looks at the frames of its callers",
    "sys._current_frames": "it looks at the frames of other threads",
    "sys.settrace": "it traces the process",
    "sys.setprofile": "it traces the process",
}
_NETWORK = ("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto", "urllib.Request")
_PROGRAMS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "pty.spawn")
_KILLS = ("os.kill", "os.killpg", "signal.pthread_kill")

#: Modules that ask for frames in the name of whoever called them.
_THROUGH = (inspect.__file__, traceback.__file__)

#: What torch's compiler starts a Python for: whether this processor can load a library that was built for it.
PROBES = os.path.join("torch", "_inductor", "cpu_vec_isa.py")

#: Modules through which the lines of a file are asked for.
_LINES = (linecache.__file__, inspect.__file__, traceback.__file__, tokenize.__file__)

_inside = threading.local()


def watch(own: str, problem: str = "") -> None:
    """Begin to audit; ``own`` is the candidate's file, ``problem`` its task's.  A hook cannot be removed."""
    theirs = {problem, importlib.util.cache_from_source(problem)} if problem and problem != own else set()
    libraries = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    places = tuple(os.path.realpath(each) + os.sep for each in libraries if each)
    suite, parent = rooms(), os.getppid()
    known = {name for name in sys.modules if "." not in name}

    @functools.cache
    def foreign(file: str) -> bool:
        if file.startswith("<frozen"):
            return False
        path = os.path.realpath(file)
        library = any(each.startswith((*places, *suite)) or "/site-packages/" in each for each in (file, path))
        return path == own or not library

    def callers(frame: FrameType | None) -> Iterator[FrameType]:
        while frame is not None:
            yield frame
            frame = frame.f_back

    def direct(frame: FrameType, name: str) -> bool:
        """Whether foreign code names the function, or asks a module of Python's that does; extensions have no frame."""
        for each in callers(frame):
            file = each.f_code.co_filename
            if file not in _THROUGH:
                named = each is not frame or name in each.f_code.co_names
                return named and foreign(file) and not file.startswith("<")
        return False

    def anywhere(frame: FrameType) -> bool:
        return any(foreign(each.f_code.co_filename) for each in callers(frame))

    def shown(frame: FrameType) -> bool:
        """Whether a library asks for the lines of a file, as those that compile do for their messages."""
        asking = None
        for each in callers(frame):
            file = each.f_code.co_filename
            if file in _LINES or file.startswith("<frozen"):
                asking = asking or (file if file == linecache.__file__ else None)
                continue
            return asking is not None and not foreign(file) and not file.startswith("<")
        return False

    def seen(event: str, arguments: tuple[Any, ...], frame: FrameType) -> None:
        if event in _LOOKS:
            if direct(frame, event.rpartition(".")[2]):
                notice("looks", _LOOKS[event])
        elif event in _NETWORK:
            notice("network", f"it asks for the network ({event})")
            raise PermissionError("there is no network in the gate's worker")
        elif event == "open":
            _opened(arguments[0], _writes(*arguments[1:3]), anywhere, frame)
        elif event in _PROGRAMS:
            if anywhere(frame):
                _started(event, arguments, frame)
        elif event in _KILLS and arguments and arguments[0] == parent:
            notice("parent", "it sends a signal to the gate")
            raise PermissionError("the gate is not to be signalled")

    def _opened(path: Any, writes: bool, anywhere: Callable[[FrameType], bool], frame: FrameType) -> None:
        if not isinstance(path, (str, bytes)):
            return
        name = os.fsdecode(path)
        if name.startswith(f"/proc/{parent}/"):
            notice("parent", "it opens files of the gate's process")
            raise PermissionError("the gate's process is not to be read")
        if MEMORY_FILE.fullmatch(name) is not None:
            notice("looks", "it opens the memory of a process")
            raise PermissionError("the memory of a process is not to be read")
        if writes and LIBRARY_FILE.search(name) is not None and anywhere(frame):
            stem = os.path.basename(name).partition(".")[0]
            if stem in known and os.path.realpath(name) != own:
                notice("files", f"it writes {os.path.basename(name)}, which would be imported in a library's place")
                raise PermissionError("no library is written in the gate's worker")
        if PACKAGE_FILE.search(name) is None:
            return
        real = os.path.realpath(name)
        if real in theirs:
            _COUNTS[f"the problem's own {os.path.basename(problem)}"] = 1
        if real != own and real.startswith(suite) and "/tests/" not in real and anywhere(frame) and not shown(frame):
            notice("suite", f"it opens {os.path.basename(real)}, a file of the suite")
            raise PermissionError("the suite's files are not there for a candidate")

    def _started(event: str, arguments: tuple[Any, ...], frame: FrameType) -> None:
        program = os.fsdecode(arguments[0]) if arguments and isinstance(arguments[0], (str, bytes)) else event
        python = os.path.basename(program).startswith("python")
        python |= os.path.realpath(program) == os.path.realpath(sys.executable)
        files = (each.f_code.co_filename for each in callers(frame))
        by = next((each for each in files if each != subprocess.__file__), "")
        if python and not by.endswith(PROBES):
            notice("program", "it starts another Python, outside this process's walls")
            raise PermissionError("no Python is started in the gate's worker")
        notice("started", f"it starts {os.path.basename(program)}")

    events = frozenset((*_LOOKS, *_NETWORK, *_PROGRAMS, *_KILLS, "open"))

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in events or getattr(_inside, "hook", False):
            return
        _inside.hook = True
        try:
            seen(event, arguments, _frame(1))
        finally:
            _inside.hook = False

    sys.addaudithook(hook)


def _writes(mode: Any, flags: Any) -> bool:
    """Whether a file is opened to be written."""
    return (isinstance(mode, str) and any(each in mode for each in "wax+")) or bool(
        isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
    )


#: The memory of a process, and files that are imported.
MEMORY_FILE, LIBRARY_FILE = re.compile(r"/proc/(self|\d+)(/task/\d+)?/mem"), re.compile(r"\.(pyc?|so|pth)$")

#: Names that may be files of the suite, so that others cost nothing.
PACKAGE_FILE = re.compile(r"\.pyc?$|\.toml$|\.json$")


# What must stay as it is.


class Integrity:
    """The functions of the watched modules and of the suite as they were when this was made, and what torch has."""

    def __init__(self) -> None:
        suite = [name for name in sys.modules if name.startswith(f"{PACKAGE}.")]
        self._was: list[tuple[Any, str, str, Any, CodeType | None]] = []
        self._classes: list[tuple[type, str, frozenset[str]]] = []
        for name in (*WATCHED, *suite):
            if name in sys.modules:
                self._remember(sys.modules[name], name)
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
        """What it did: the functions that are others now, the methods that hide others, what it registered."""
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


#: Torch's lists of hooks on all modules, and the keys of operators' kernels that are the machine's own.
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
    """What is registered with torch beside these, in words; where only the candidate has torch, no kernels."""
    new = frozenset() if kernels is None else (_kernels() or frozenset()) - kernels
    found = [f"it replaced the kernel {key}" for key in sorted(new) if _KERNELS.fullmatch(key)]
    return found + [f"it put a hook on all modules, {each.removeprefix('_global_')}" for each in _hooks() - hooks]
