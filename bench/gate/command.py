"""Command ``gate``: its options, and the verdict as text, file and exit status."""

from __future__ import annotations

import argparse
import secrets
from pathlib import Path

import msgspec

from attention_conformance.bench.gate.decide import Gate, Task
from attention_conformance.bench.gate.verdict import STATUS, text
from attention_conformance.conformance.run.targets import DEVICES
from attention_conformance.impls.contract import DTYPES, InputError, Profile
from attention_conformance.impls.envelope import Shape
from attention_conformance.impls.operators import SDPA
from attention_conformance.impls.select import plug_in


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("candidate", help="path.py:function[@framework]")
    parser.add_argument(
        "--require", metavar="KEYWORD,…", help="what the task requires; default: what the signature has"
    )
    parser.add_argument(
        "--shape", metavar="B,Hq,Hkv,Sq,Sk,D[,Dv]", action="append", default=[], help="a size of the task, repeatable"
    )
    parser.add_argument("--dtype", action="append", default=[], choices=DTYPES, help="default: float32; repeatable")
    parser.add_argument("--profile", choices=[p.value for p in Profile], help="precision that the task allows")
    parser.add_argument("--device", default="cpu", choices=DEVICES)
    parser.add_argument("--own-work", action="store_true", help="reject calls of libraries' own attention")
    parser.add_argument(
        "--seed", type=int, help="of an earlier verdict, to ask the same; default: one that none foresees"
    )
    parser.add_argument("--budget", type=float, default=120.0, metavar="SECONDS", help="default: %(default)g")
    parser.add_argument("--json", metavar="FILE", help="write the verdict to this file")
    parser.epilog = "Exit status: 0 accepted, 1 rejected, 3 cannot tell, 2 for input that cannot be used."


def run(
    candidate: str,
    require: str | None,
    shape: list[str],
    dtype: list[str],
    profile: str | None,
    device: str,
    own_work: bool,
    seed: int | None,
    budget: float,
    json: str | None,
) -> tuple[str, int]:
    """Decide; the text and the exit status.  Raises InputError for what cannot be used."""
    keywords = tuple(filter(None, (require or "").split(",")))
    unknown = sorted(set(keywords) - set(SDPA.keywords))
    if unknown:
        raise InputError(f"--require {unknown[0]}: no keyword of sdpa; known: {', '.join(SDPA.keywords)}")
    task = Task(
        require=keywords,
        shapes=tuple(map(read_shape, shape)),
        dtypes=tuple(dtype) or ("float32",),
        profile=Profile(profile) if profile else None,
        device=device,
        own_work=own_work,
        named=require is not None,
    )
    verdict = Gate(plug_in(candidate), task, secrets.randbits(60) if seed is None else seed, budget).run()
    if json:
        Path(json).write_bytes(msgspec.json.format(msgspec.json.encode(verdict), indent=1) + b"\n")
    return text(verdict), STATUS[verdict.verdict]


def read_shape(given: str) -> Shape:
    """The sizes that a text like 2,4,4,64,64,32 names.  Raises InputError for any other."""
    try:
        sizes = [int(part) for part in given.split(",")]
    except ValueError:
        sizes = []
    if len(sizes) not in (6, 7) or min(sizes) < 1 or sizes[1] % sizes[2]:
        raise InputError(f"--shape {given}: expected B,Hq,Hkv,Sq,Sk,D[,Dv], each at least 1, Hq a multiple of Hkv")
    b, hq, hkv, sq, sk, d = sizes[:6]
    return Shape(b, hq, hkv, sq, sk, d, sizes[-1])
