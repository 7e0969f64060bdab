"""Gate's runs: every cheat and every honest kernel goes through the gate many times, next to work that disturbs it.

``python -m studies gate_runs --runs 20 --work FILE`` adds the missing runs to the file, one run of all after the other,
so that it can be stopped and resumed; ``--page`` keeps the counts and writes the tables into bench/GATE.md.  With
``--add`` they are added to the kept counts, and no run counts twice.  A run counts only for a candidate's present code:
one whose code changed is run again.  Each has the version of its gate, a digest of the gate's sources, so that the
tables show how many are of the last version.

Each run has a seed of its own.  Neighbours are processes that multiply matrices in bursts of random length.
"""

from __future__ import annotations

import ast
import collections
import functools
import hashlib
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

from attention_conformance.bench import gate
from attention_conformance.bench.machine.machine import load_average
from attention_conformance.bench.tests.candidates import CHEATS, HONEST, SECRET, Candidate
from studies.common import Measured, Study, Unfit, libraries, markdown, sentence

#: Script of a neighbour, which ends when this process is gone: bursts and pauses of 0 to 0.5 s each.
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

#: The version of runs from before versions were kept.
EARLIER = "earlier"

#: Seconds for a verdict, including a torch.compile on a busy machine.
BUDGET = 240.0


@functools.cache
def gate_version(folder: Path = Path(gate.__path__[0])) -> str:
    """A digest of the code in the gate's sources, without comments, docstrings and annotations."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.py")):
        digest.update(file.name.encode() + _tree_text(ast.parse(file.read_bytes())).encode())
    return digest.hexdigest()[:12]


def _tree_text(tree: ast.Module) -> str:
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
        for name in ("annotation", "returns"):
            if not isinstance(node, ast.AnnAssign) and hasattr(node, name):
                setattr(node, name, None)
        body = getattr(node, "body", None)
        if isinstance(body, list):
            vars(node)["body"] = [each for each in body if not _is_text(each) and not _of_types(each)]
    return ast.dump(tree)


def _of_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module in ("__future__", "typing", "collections.abc")


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def once(one: Candidate) -> dict[str, Any]:
    """One verdict, as a line of the file."""
    started, load = time.monotonic(), load_average()
    with tempfile.TemporaryDirectory() as folder:
        verdict = one.decided(Path(folder), budget=BUDGET)
    said = [f"{each.kind}: {each.text}" for each in verdict.reasons]
    return {
        "name": one.name,
        "key": one.key,
        "gate": gate_version(),
        "verdict": verdict.verdict,
        "kinds": sorted({each.kind for each in verdict.reasons}),
        "named": not one.reason or any(one.reason in each for each in said),
        "said": said[:3],
        "seed": verdict.seed,
        "seconds": round(time.monotonic() - started, 2),
        "load": load,
    }


def measure(runs: int, work: Path, neighbours: int, only: str, add: bool = False) -> dict[str, Any]:
    """Run what the file lacks, and count its runs."""
    os.environ[SECRET] = "1"
    wanted = only.split(",")
    chosen = [one for one in (*HONEST, *CHEATS) if any(each in f"={one.name}=" for each in wanted)]
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
    kept: dict[str, Any] = STUDY.kept() if add else {"candidates": {}, "loads": [], "neighbours": 0}
    neighbours = max(neighbours, kept["neighbours"])
    return counted(lines(work), kept) | {"neighbours": neighbours, "versions": _versions()}


def lines(work: Path) -> list[dict[str, Any]]:
    """The runs of a file; none without one."""
    return [json.loads(line) for line in work.read_text(encoding="utf-8").splitlines()] if work.exists() else []


def counted(found: Iterable[Mapping[str, Any]], kept: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Counts for each candidate's present code: verdicts, kinds of reasons, gates, seeds, seconds; the loads of all.

    Parameters
    ----------
    found
        Lines of files.
    kept
        Counts of earlier runs; a run is known by its seed.
    """
    keys = {one.name: one.key for one in (*HONEST, *CHEATS)}
    earlier = {} if kept is None else kept["candidates"]
    loads: list[float | None] = [] if kept is None else list(kept["loads"])
    table = {name: {**_empty(one["key"]), **one} for name, one in earlier.items() if keys.get(name) == one["key"]}
    for one in table.values():
        one["gates"] = one["gates"] or {EARLIER: sum(one["verdicts"].values())}
    last = "" if kept is None else kept.get("gate", "")
    counted_before = {seed for one in table.values() for seed in one["seeds"]}
    for line in found:
        if keys.get(line["name"]) != line["key"] or line["seed"] in counted_before:
            continue
        one = table.setdefault(line["name"], _empty(line["key"]))
        one["verdicts"][line["verdict"]] = one["verdicts"].get(line["verdict"], 0) + 1
        one["named"] += line["named"]
        one["seconds"].append(line["seconds"])
        one["seeds"].append(line["seed"])
        last = version = line.get("gate", EARLIER)
        one["gates"][version] = one["gates"].get(version, 0) + 1
        for kind in line["kinds"]:
            one["kinds"][kind] = one["kinds"].get(kind, 0) + 1
        loads.append(line["load"])
    return {"candidates": table, "loads": [each for each in loads if each is not None], "gate": last}


def _empty(key: str) -> dict[str, Any]:
    return {"key": key, "verdicts": {}, "kinds": {}, "named": 0, "seconds": [], "seeds": [], "gates": {}}


def _versions() -> dict[str, str]:
    names = ("numpy", "torch", "jax", "onnxruntime")
    return {name: importlib.metadata.version(name) for name in names}


def _share(kept: Mapping[str, Any], name: str, verdict: str) -> str:
    one = kept["candidates"].get(name)
    return "not run" if one is None else f"{one['verdicts'].get(verdict, 0)} of {sum(one['verdicts'].values())}"


def _of_the_last(kept: Mapping[str, Any], name: str) -> str:
    """Number of runs with the last version of the gate."""
    return str(kept["candidates"].get(name, {}).get("gates", {}).get(kept.get("gate"), 0))


def _kinds(kept: Mapping[str, Any], name: str) -> str:
    one = kept["candidates"].get(name, {"kinds": {}})
    most = sorted(one["kinds"].items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{kind} {count}" for kind, count in most)


def cheats(kept: Measured) -> str:
    """Every cheat, how often it was rejected, and for what reasons."""
    rows = []
    for one in CHEATS:
        linked = f"[{short(one.source)}]({one.source})" if one.source.startswith("http") else one.source
        rows.append(
            [
                one.name, one.framework, one.what, _share(kept, one.name, "rejected"), _of_the_last(kept, one.name),
                _kinds(kept, one.name),
                f"by analogy: {linked}" if one.analogy else linked,
            ]
        )  # fmt: skip
    heads = (
        "cheat",
        "in",
        "what it does",
        "rejected",
        "of the last version",
        "kinds of reasons, and in how many runs",
        "source",
    )
    return markdown(heads, rows, (0, 1, 2, 5, 6))


def short(source: str) -> str:
    """An address, shortened for a reader."""
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
        rows.append([one.name, one.what, _share(kept, one.name, "accepted"), _of_the_last(kept, one.name), taken])
    loads = kept["loads"]
    beside = f"neighbours that load the machine on purpose: at most {kept['neighbours']}, beside other work"
    beside += f"; load averages of {min(loads):.1f} to {max(loads):.1f} during the runs" if loads else ""
    said = sentence(kept, beside, libraries(kept))
    return (
        markdown(("kernel", "what it is", "accepted", "of the last version", "seconds"), rows, (0, 1)) + f"\n\n{said}"
    )


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
        "--only": {
            "default": "",
            "help": "candidates with one of these, by commas, in their name; =NAME= is one alone",
        },
        "--add": {"action": "store_true", "help": "add to the runs that are kept"},
    },
)
