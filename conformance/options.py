"""Options of a conformance run: one table for ``pytest conformance`` and ``attention-conformance check``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from attention_conformance.conformance.judging.claims import ALL
from attention_conformance.conformance.judging.features import FEATURES
from attention_conformance.conformance.run import sharding
from attention_conformance.conformance.run.parallel import default_parallel
from attention_conformance.impls.option_types import above, count
from attention_conformance.impls.process import limits


def add(add: Callable[..., Any]) -> None:
    """Add the options with ``add``, which is the ``addoption`` of a pytest group or ``add_argument`` of a parser."""
    add_shared(add)
    add("--case", action="append", default=[], metavar="GLOB", help="only these cases; may be repeated")
    add(
        "--case-timeout",
        type=above(0.0),
        default=300.0,
        metavar="SECONDS",
        help="time for one case, compilation included",
    )
    add(
        "--parallel",
        type=count(1),
        default=default_parallel(),
        metavar="N",
        help="how many libraries are judged at the same time (default: %(default)s)",
    )
    add("--conformance-json", metavar="FILE", help="write the results to this file, as JSON lines")
    add(
        "--require",
        action="append",
        default=[],
        metavar="FEATURES",
        help="fail unless every implementation conforms to these features, separated by commas, or to all of them:"
        f" {', '.join(FEATURES)}, {ALL}",
    )
    add(
        "--scripts",
        metavar="FOLDER",
        default="conformance-scripts",
        help="where the standalone script of each failure is written (default: %(default)s)",
    )


def add_shared(add: Callable[..., Any]) -> None:
    """Add the options that the bench shares: what is called, where, and in what kind of process."""
    add(
        "--impl",
        action="append",
        default=[],
        metavar="WHAT",
        help="an implementation: a name, a glob over names, path.py:function[@framework],"
        " package.module:function[@framework], model.onnx[:name=ours,…] or ./program; may be repeated;"
        " framework: numpy, torch, jax, triton or pallas; default: the one that the source of the function names;"
        " default of --impl: all built-in and registered ones",
    )
    add("--device", action="append", default=[], metavar="NAME", help="cpu or cuda; default: all found")
    add("--dtype", action="append", default=[], metavar="NAME", help="float64, float32, float16 or bfloat16")
    add("--in-process", action="store_true", help="run implementations in this process, for a debugger: no isolation")
    add(
        "--case-memory",
        type=_size,
        default=limits.default(),
        metavar="SIZE",
        help="memory limit for one case, including its process, such as 4GiB; default: four fifths of the memory",
    )
    add(
        "--shard",
        metavar="I/N",
        type=_shard,
        help="judge part I of N of the implementations, each of which is in one part; 'attention-conformance merge'"
        " joins the result files",
    )
    add(
        "--deviations",
        action="append",
        default=[],
        metavar="FILE",
        help="a file of known deviations of your own, in the form of conformance/deviations.toml; read in addition to"
        " that one; may be repeated",
    )


def add_fuzz(add: Callable[..., Any]) -> None:
    """Add the options of property tests, first calls, invariance and quick runs in the same way."""
    add(
        "--fuzz",
        type=int,
        metavar="N",
        help="also check every property of sdpa on N random problems per target; only that with -k test_fuzz",
    )
    add(
        "--fresh",
        type=int,
        metavar="N",
        help="also judge the first call of N forked processes per target, on several threads and next to busy"
        " processes; only that with -k test_first_calls",
    )
    add(
        "--invariance",
        action="store_true",
        help="also check whether a sequence and a row have the same bits by themselves, elsewhere in a batch, next to"
        " others, with padding and in chunks; only that with -k test_invariance",
    )
    add(
        "--quick",
        action="store_true",
        help="only a selection of cases that shows every known mistake and covers every clause; skips built-ins that"
        " are compiled or exported for each case, unless --impl names them",
    )
    add("--fuzz-seed", type=int, metavar="SEED", help="repeat the problems of the run that printed this seed")


def _shard(text: str) -> sharding.Shard:
    try:
        return sharding.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _size(text: str) -> int:
    try:
        return limits.size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
