"""For tests of scripts: judge a case in a worker, write its script, and run many scripts without this suite."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from attention_conformance.conformance.cases import AnyCase, every_case
from attention_conformance.conformance.judging.judge import judge
from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.repro import Element, worst_elements, write
from attention_conformance.conformance.targets import Target
from attention_conformance.impls import cache
from attention_conformance.impls.calls import Reply, Request
from attention_conformance.impls.contract import Implementation, Profile
from attention_conformance.impls.process.pool import Crashed, Pool, TimedOut

#: An implementation, the name of a case, and a dtype.
Job = tuple[Implementation, str, str]

#: The reason in a script of a case that passed.
NOTHING_WRONG = "nothing is wrong"

#: Failures whose script ends the process, or does not end.
DEADLY = (Failure.CRASHED, Failure.TIMEOUT)

RUNNER = Path(__file__).with_name("repro_runner.py")

#: JAX keeps what scripts compile, as in the suite's workers (impls.jax.prepare), so that the next run does not compile.
KEEP = {
    "JAX_COMPILATION_CACHE_DIR": str(cache.folder("jax") or ""),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
VERSIONS = {"torch": "2.0", "jax": "0.5", "jaxlib": "0.5", "onnx": "1.19", "onnxruntime": "1.23", "unused": "7"}

#: Scripts are written one at a time: Python 3.11 has one count of the depth of a syntax tree for all threads, and
#: ast.parse fails where two threads parse at once (https://github.com/python/cpython/issues/106905).
_WRITING = threading.Lock()


@dataclass(frozen=True)
class Written:
    """A script, its result, the elements that it checks, and the reply that they were taken from."""

    path: Path
    result: Result
    elements: tuple[Element, ...]
    reply: Reply | None


@dataclass(frozen=True)
class Ran:
    """The outcome of a script."""

    code: int
    printed: str

    @property
    def values(self) -> list[str]:
        """The values that the script found at the elements, as it printed them."""
        return re.findall(r"\] = (\S+), expected", self.printed)


def answered(pool: Pool, target: Target, case: AnyCase, timeout: float = 300) -> tuple[Result, Reply | None]:
    """The judge's result for a case, without the ledger, and the reply that was judged."""
    implementation, dtype = target.implementation, target.dtype
    profile = implementation.profile(dtype).value
    blank = Result(implementation.name, target.device, dtype, case.name, case.clauses, Outcome.PASSED, profile=profile)
    try:
        for each in filter(None, (every_case().get(case.after), case)):
            x = each.inputs(dtype)
            request = Request(target.device, x.arrays, x.keywords, memory=each.memory, repeats=each.repeats)
            reply = pool.call(
                implementation, "attention_conformance.impls.calls:call", implementation, request, timeout=timeout
            )
    except (Crashed, TimedOut) as error:
        failure = Failure.CRASHED if isinstance(error, Crashed) else Failure.TIMEOUT
        return replace(blank, outcome=Outcome.FAILED, failure=failure, reason=str(error)), None
    return judge(reply, case, blank), reply


def written(
    pool: Pool, implementation: Implementation, case: str, dtype: str, folder: Path, timeout: float = 300
) -> Written | None:
    """The script of a case; None if the case is unsupported.

    For a case that passes, the script checks the worst elements of its output; for a refusal, it expects the refusal;
    for an output without elements, it checks the shape.
    """
    target, given = Target(implementation, "cpu", dtype), every_case()[case]
    if (
        given.keywords
        - pool.call(implementation, "attention_conformance.impls.calls:describe", implementation).keywords
    ):
        return None
    result, reply = answered(pool, target, given, timeout)
    elements: tuple[Element, ...] = ()
    if result.outcome is Outcome.UNSUPPORTED:
        return None
    if reply is not None and result.failure in (None, Failure.VALUE) and not given.invalid:
        profile = Profile(result.profile or Profile.WIDE)
        elements = worst_elements(reply, given, dtype, profile, wrong=result.failure is not None)
    if result.failure is None:
        failure = Failure.NO_ERROR if given.invalid else Failure.VALUE if elements else Failure.SHAPE
        result = replace(result, failure=failure, reason=NOTHING_WRONG)
    with _WRITING:
        path = write(result, target, given, elements, VERSIONS, folder)
    return Written(path, result, elements, reply)


def written_and_run(
    jobs: Iterable[Job], folder: Path, timeout: float = 300
) -> tuple[dict[Job, Written], dict[Job, Ran]]:
    """The scripts of supported jobs, and their outcomes; a script of a crash is not run.

    The libraries run in parallel, each in one process that makes its results and one that runs its scripts.
    """
    pool = Pool(in_process=False)
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        groups.setdefault(job[0].process, []).append(job)

    def group(name: str) -> tuple[dict[Job, Written], dict[Job, Ran]]:
        made = {(i, c, d): written(pool, i, c, d, folder, timeout) for i, c, d in groups[name]}
        scripts = {job: script for job, script in made.items() if script is not None}
        alive = [job for job, script in scripts.items() if script.result.failure not in DEADLY]
        ran = run([scripts[job].path for job in alive])
        return scripts, {job: ran[scripts[job].path] for job in alive}

    try:
        with ThreadPoolExecutor() as threads:
            found = list(threads.map(group, groups))
    finally:
        pool.close()
    return {k: v for each, _ in found for k, v in each.items()}, {k: v for _, each in found for k, v in each.items()}


def run(paths: Sequence[Path]) -> dict[Path, Ran]:
    """Run scripts in a process without this suite, far from its folder."""
    command = [sys.executable, "-I", str(RUNNER), *map(str, paths)]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
        cwd="/",
        env={**KEEP, **os.environ},
    )
    return {Path(path): Ran(code, printed) for path, code, printed in map(json.loads, done.stdout.splitlines())}


def shown(element: Element) -> str:
    """The value of an element as a script prints it."""
    return f"{element.got:.9g}"


def alone(path: Path, timeout: float | None = None) -> int:
    """The exit code of a script in its own process, in which this suite can be imported.

    Raises subprocess.TimeoutExpired if it does not end within ``timeout`` seconds.
    """
    command = [sys.executable, "-I", str(path)]
    return subprocess.run(command, capture_output=True, check=False, cwd="/", timeout=timeout).returncode
