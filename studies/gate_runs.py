"""Gate's runs: every cheat and every honest kernel before the gate again and again, beside work that disturbs it.

``python -m studies gate_runs --runs 20 --work FILE`` adds to the file what it lacks, a run of all after the other, so
that it can be ended and begun again; ``--page`` keeps the counts and sets the tables into bench/GATE.md.  A run counts
for the very code that a candidate has: one whose code changed is run again.

Each run has a seed of its own.  Neighbours are processes that multiply matrices in bursts of random length.
"""

from __future__ import annotations

import collections
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from attention_conformance.bench.machine.machine import load_average
from attention_conformance.bench.tests.candidates import CHEATS, HONEST, SECRET, Candidate
from studies.common import Measured, Study, Unfit, libraries, markdown, sentence

#: The load of a neighbour until this process is gone: bursts of 0 to 0.5 s, and as long pauses.
NEIGHBOUR = """
import os, random, time
import numpy as np
a = np.random.rand(400, 400)
parent = os.getppid()
while os.getppid() == parent:
    until = time.monotonic() + random.uniform(0, 0.5)
    while time.monotonic() < until:
        a @ a
    time.sleep(random.uniform(0, 0.5))
"""

#: Seconds of a verdict, with what a torch.compile of a busy machine takes.
BUDGET = 240.0


def once(one: Candidate) -> dict[str, Any]:
    """One verdict, as a line of the file."""
    started, load = time.monotonic(), load_average()
    with tempfile.TemporaryDirectory() as folder:
        verdict = one.decided(Path(folder), budget=BUDGET)
    said = [f"{each.kind}: {each.text}" for each in verdict.reasons]
    return {
        "name": one.name,
        "key": one.key,
        "verdict": verdict.verdict,
        "kinds": sorted({each.kind for each in verdict.reasons}),
        "named": not one.reason or any(one.reason in each for each in said),
        "said": said[:3],
        "seed": verdict.seed,
        "seconds": round(time.monotonic() - started, 2),
        "load": load,
    }


def measure(runs: int, work: Path, neighbours: int, only: str) -> dict[str, Any]:
    """Run what the file lacks, and count what it has."""
    os.environ[SECRET] = "1"
    chosen = [one for one in (*HONEST, *CHEATS) if only in one.name]
    if not chosen:
        raise Unfit(f"no candidate has {only!r} in its name")
    count = neighbours if runs else 0
    others = [subprocess.Popen([sys.executable, "-c", NEIGHBOUR]) for _ in range(count)]  # noqa: S603  (our own)
    try:
        for run in range(1, runs + 1):
            had = collections.Counter((line["name"], line["key"]) for line in lines(work))
            for one in chosen:
                if had[one.name, one.key] < run:
                    line = json.dumps(once(one), ensure_ascii=False)
                    with work.open("a", encoding="utf-8") as file:
                        file.write(line + "\n")
    finally:
        for each in others:
            each.kill()
            each.wait()
    return counted(lines(work)) | {"neighbours": neighbours, "versions": _versions()}


def lines(work: Path) -> list[dict[str, Any]]:
    """The runs of a file; none without one."""
    return [json.loads(line) for line in work.read_text(encoding="utf-8").splitlines()] if work.exists() else []


def counted(found: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Of each candidate as it is now: verdicts, kinds of reasons, seconds; and the loads of all."""
    table: dict[str, dict[str, Any]] = {}
    loads, keys = [], {one.name: one.key for one in (*HONEST, *CHEATS)}
    for line in found:
        if keys.get(line["name"]) != line["key"]:
            continue
        one = table.setdefault(
            line["name"], {"key": line["key"], "verdicts": {}, "kinds": {}, "named": 0, "seconds": []}
        )
        one["verdicts"][line["verdict"]] = one["verdicts"].get(line["verdict"], 0) + 1
        one["named"] += line["named"]
        one["seconds"].append(line["seconds"])
        for kind in line["kinds"]:
            one["kinds"][kind] = one["kinds"].get(kind, 0) + 1
        loads.append(line["load"])
    return {"candidates": table, "loads": [each for each in loads if each is not None]}


def _versions() -> dict[str, str]:
    names = ("numpy", "torch", "jax", "onnxruntime")
    return {name: importlib.metadata.version(name) for name in names}


def _share(kept: Mapping[str, Any], name: str, verdict: str) -> str:
    one = kept["candidates"].get(name)
    return "not run" if one is None else f"{one['verdicts'].get(verdict, 0)} of {sum(one['verdicts'].values())}"


def _kinds(kept: Mapping[str, Any], name: str) -> str:
    one = kept["candidates"].get(name, {"kinds": {}})
    most = sorted(one["kinds"].items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{kind} {count}" for kind, count in most)


def cheats(kept: Measured) -> str:
    """Every cheat, how often it was rejected, and by what."""
    rows = []
    for one in CHEATS:
        linked = f"[{short(one.source)}]({one.source})" if one.source.startswith("http") else one.source
        rows.append(
            [
                one.name, one.framework, one.what, _share(kept, one.name, "rejected"), _kinds(kept, one.name),
                f"by analogy: {linked}" if one.analogy else linked,
            ]
        )  # fmt: skip
    heads = ("cheat", "in", "what it does", "rejected", "kinds of reasons, and in how many runs", "source")
    return markdown(heads, rows, (0, 1, 2, 4, 5))


def short(source: str) -> str:
    """An address as a reader knows it."""
    parts = source.removeprefix("https://").split("/")
    if parts[0] != "github.com":
        return parts[0] + "/" + parts[-1]
    last = parts[-1] if "blob" in parts else "#" + parts[-1] if parts[-1].isdigit() else ""
    return f"{parts[2]} {last}".strip()


def honest(kept: Measured) -> str:
    """Every honest kernel, how often it was accepted, and how long that took."""
    rows = []
    for one in HONEST:
        seconds = sorted(kept["candidates"].get(one.name, {"seconds": []})["seconds"])
        taken = f"{seconds[0]:.0f} to {seconds[-1]:.0f}" if seconds else ""
        rows.append([one.name, one.what, _share(kept, one.name, "accepted"), taken])
    loads = kept["loads"]
    beside = f"neighbours that load the machine on purpose: at most {kept['neighbours']}, beside other work"
    beside += f"; load averages of {min(loads):.1f} to {max(loads):.1f} during the runs" if loads else ""
    said = sentence(kept, beside, libraries(kept))
    return markdown(("kernel", "what it is", "accepted", "seconds"), rows, (0, 1)) + f"\n\n{said}"


STUDY = Study(
    "gate_runs",
    "every cheat and every honest kernel before the gate again and again, on a busy machine",
    measure,
    {"bench/GATE.md#cheats": cheats, "bench/GATE.md#honest": honest},
    {
        "--runs": {"type": int, "default": 20, "help": "of each; default: %(default)s"},
        "--work": {
            "type": Path,
            "default": Path("gate_runs.jsonl"),
            "help": "what was run so far; default: %(default)s",
        },
        "--neighbours": {"type": int, "default": 2, "help": "processes that load the machine; default: %(default)s"},
        "--only": {"default": "", "help": "candidates with this in their name"},
    },
)
