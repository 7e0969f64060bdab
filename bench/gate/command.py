"""Command ``gate``: its options, and the verdict as text, file and exit status."""

from __future__ import annotations

import argparse
import ast
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from attention_conformance.bench.gate import modules
from attention_conformance.bench.gate.decide import Gate, Task
from attention_conformance.bench.gate.modules import Problem
from attention_conformance.bench.gate.verdict import STATUS, Verdict, text
from attention_conformance.conformance.targets import DEVICES
from attention_conformance.impls.contract import (
    DTYPES,
    Framework,
    Implementation,
    ImplementationError,
    InputError,
    Layout,
    Profile,
    checked_profile,
)
from attention_conformance.impls.envelope import Shape
from attention_conformance.impls.operators import SDPA
from attention_conformance.impls.option_types import above, count, refuse_unwritable
from attention_conformance.impls.process.pool import Crashed, Pool, TimedOut
from attention_conformance.impls.select import plug_in

#: Seconds that a problem's file may take to describe its problem.
PROBLEM_SECONDS = 120.0


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("candidate", help="path.py:function[@framework], or path.py:Class of a torch.nn.Module")
    parser.add_argument(
        "--task", metavar="FILE", help="a problem in KernelBench's format, which gives sizes, dtype and order of inputs"
    )
    parser.add_argument(
        "--require", metavar="KEYWORD,…", help="keywords that the task requires; default: those of the signature"
    )
    parser.add_argument(
        "--shape", metavar="B,Hq,Hkv,Sq,Sk,D[,Dv]", action="append", default=[], help="a size of the task, repeatable"
    )
    parser.add_argument("--dtype", action="append", default=[], choices=DTYPES, help="default: float32; repeatable")
    parser.add_argument("--profile", choices=[p.value for p in Profile], help="precision that the task allows")
    parser.add_argument("--device", default="cpu", choices=DEVICES)
    parser.add_argument("--own-work", action="store_true", help="reject calls to the attention of a library")
    parser.add_argument(
        "--seed", type=count(0), help="seed of an earlier verdict, to repeat its problems; default: unpredictable"
    )
    parser.add_argument("--budget", type=above(0.0), default=120.0, metavar="SECONDS", help="default: %(default)g")
    parser.add_argument("--json", metavar="FILE", help="write the verdict to this file")
    parser.epilog = "Exit status: 0 accepted, 1 rejected, 3 cannot tell, 2 for input that cannot be used."


def run(json: str | None, **asked: Any) -> tuple[str, int]:
    """Decide; the text and the exit status.  Raises InputError for unusable input."""
    refuse_unwritable("--json", json)
    verdict = decided(**asked)
    if json:
        Path(json).write_bytes(msgspec.json.format(msgspec.json.encode(verdict), indent=1) + b"\n")
    return text(verdict), STATUS[verdict.verdict]


def decided(
    candidate: str,
    task: str | None,
    require: str | None,
    shape: list[str],
    dtype: list[str],
    profile: str | None,
    device: str,
    own_work: bool,
    seed: int | None,
    budget: float,
    json: None = None,
) -> Verdict:
    """The verdict for the options, given by name.  Raises InputError for unusable input."""
    keywords = tuple(filter(None, (require or "").split(",")))
    unknown = sorted(set(keywords) - set(SDPA.keywords))
    if unknown:
        raise InputError(f"--require {unknown[0]}: no keyword of sdpa; known: {', '.join(SDPA.keywords)}")
    problem = problem_of(task) if task else None
    if problem is not None:
        shape, dtype = shape or [",".join(map(str, problem.sizes))], dtype or [problem.dtype]
    try:
        allowed = [checked_profile(profile, each) for each in dtype or ["float32"]] if profile else []
    except ValueError as error:
        raise InputError(f"--profile {profile}: {error}") from None
    asked = Task(
        require=keywords,
        shapes=tuple(map(read_shape, shape)),
        dtypes=tuple(dtype) or ("float32",),
        profile=next(iter(allowed), None),
        device=device,
        own_work=own_work,
        named=require is not None or problem is not None,
        problem="" if problem is None else f"{Path(str(task)).name}: {problem.text}",
    )
    plugged = implementation(candidate, problem)
    if plugged.kernels:
        raise InputError(
            f"{candidate}: the gate interprets no kernels: give it as @{plugged.framework} on a machine with a GPU"
        )
    if missing := plugged.missing():
        raise InputError(f"{candidate} needs {', '.join(missing)}, which is not installed")
    if problem is not None and problem.form:
        always = modules.FORMS[problem.form]
        asked = replace(asked, always=always, require=tuple({*asked.require, *always}))
    return Gate(plugged, asked, secrets.randbits(60) if seed is None else seed, budget).run()


def problem_of(file: str) -> Problem:
    """The problem of a file, read by a process of its own.  Raises InputError for an unusable file."""
    path = Path(file).resolve()
    if not path.is_file():
        raise InputError(f"--task {file}: no such file")
    pool = Pool(always=False)
    reader = Implementation(name="task", target=MADE_OF_TASK, framework=Framework.TORCH, worker="gate task")
    try:
        found: Problem = pool.call(reader, MADE_OF_TASK, str(path), timeout=PROBLEM_SECONDS)
    except (Crashed, TimedOut, ImplementationError) as error:
        raise InputError(f"--task {file}: {error}") from None
    except Exception as error:
        raise InputError(f"--task {file}: {type(error).__name__}: {error}") from None
    finally:
        pool.close()
    return found


#: The job that reads a problem.
MADE_OF_TASK = f"{modules.__name__}:described"


def implementation(candidate: str, problem: Problem | None) -> Implementation:
    """The record of a candidate.  Raises InputError for a class without a problem, whose sizes are unknown."""
    given, _, framework = candidate.partition("@")
    if not is_class(given):
        plugged = plug_in(candidate)
        return plug_in(f"{given}@{plugged.framework}") if plugged.kernels and not framework else plugged
    if problem is None:
        raise InputError(
            f"{candidate} is a class: give the problem that it solves, with --task problem.py, for the sizes"
        )
    if framework not in ("", "torch"):
        raise InputError(f"{candidate}: a torch.nn.Module takes tensors of torch")
    plugged = plug_in(f"{given}@torch")
    file, _, name = plugged.target.rpartition(":")
    layout = Layout.BSHD if problem.axes == "BSHD" else Layout.BHSD
    source = modules.source(problem, file, name, plugged.folder)
    return replace(plugged, target=modules.MADE, source=source, layout=layout, name=candidate)


def is_class(candidate: str) -> bool:
    """Whether ``path.py:Name`` names a class, by the text of the file, which is not run."""
    place, _, name = candidate.rpartition(":")
    try:
        tree = ast.parse(Path(place).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return False
    return any(isinstance(each, ast.ClassDef) and each.name == name for each in tree.body)


def read_shape(given: str) -> Shape:
    """The sizes in a text like 2,4,4,64,64,32.  Raises InputError for any other text."""
    try:
        sizes = [int(part) for part in given.split(",")]
    except ValueError:
        sizes = []
    if len(sizes) not in (6, 7) or min(sizes) < 1 or sizes[1] % sizes[2]:
        raise InputError(f"--shape {given}: expected B,Hq,Hkv,Sq,Sk,D[,Dv], each at least 1, Hq a multiple of Hkv")
    b, hq, hkv, sq, sk, d = sizes[:6]
    return Shape(b, hq, hkv, sq, sk, d, sizes[-1])
