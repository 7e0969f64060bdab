"""The fingerprint: its content, what its id depends on, and other systems."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.bench.machine import machine
from attention_conformance.bench.machine.machine import MUST_AGREE, describe, mark

pytestmark = pytest.mark.slow

#: The py-cpuinfo data of an x86 processor.
CPUINFO = {
    "arch": "X86_64",
    "brand_raw": "AMD EPYC 9555",
    "family": 26,
    "model": 2,
    "stepping": 1,
    "flags": ["fpu", "vme", "hypervisor", "avx2"],
}

#: Linux' data on an Arm processor, whose name py-cpuinfo knows.
ARM = """processor : 0
CPU implementer : 0x41
CPU variant : 0x3
CPU part : 0xd0c

processor : 1
CPU part : 0xd0d
"""


def system(root: Path, **files: str) -> Path:
    """The kernel's files in a folder, by their path, with "__" for "/"."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def _nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """No program that knows the hardware is found."""
    machine._gpu.cache_clear()
    monkeypatch.setattr(machine.shutil, "which", lambda program: None)  # type: ignore[attr-defined]


def described(root: Path, **rest: Any) -> dict[str, Any]:
    """The fingerprint of a system in a folder."""
    return describe({"torch": "2.13"}, {"torch": 2}, root, **rest)


def test_this_machine_is_described() -> None:
    """The fingerprint can be written to a result file, and the same machine has the same id twice."""
    one, again = describe({"numpy": "2"}), describe({"numpy": "2"})
    assert one == again == json.loads(json.dumps(one))
    assert set(MUST_AGREE) < set(one)
    assert one["cores_usable"] >= 1
    assert one["blas"]
    assert platform.python_version() in one["python"]


def test_an_x86_processor_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The description has its name, its stepping, and whether it is virtual."""
    monkeypatch.setattr(machine, "_cpuinfo", lambda: CPUINFO)
    found = described(tmp_path)
    assert found["cpu"] == "AMD EPYC 9555 (cpu family 26, model 2, stepping 1)"
    assert found["virtual"] is True


def test_an_arm_processor_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's numbers of the first core are used; whether it is virtual is unknown."""
    monkeypatch.setattr(machine, "_cpuinfo", lambda: {"arch": "ARM_8", "brand_raw": "Neoverse-N1", "flags": ["asimd"]})
    found = described(system(tmp_path, proc__cpuinfo=ARM))
    assert found["cpu"] == "Neoverse-N1 (CPU implementer 0x41, CPU part 0xd0c, CPU variant 0x3)"
    assert found["virtual"] is None


def test_a_processor_that_is_not_known_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown processor stops no run."""

    def unknown() -> None:
        raise ValueError("unknown processor")

    monkeypatch.setattr("cpuinfo.get_cpu_info", unknown)
    assert machine._cpuinfo.__wrapped__() == {}


@pytest.mark.usefixtures("_nothing_else")
def test_governors_of_all_cores_are_told(tmp_path: Path) -> None:
    """Governors that differ between cores are all reported: the machine is not at full speed."""
    folder = "sys__devices__system__cpu"
    files = {
        f"{folder}__cpu0__cpufreq__scaling_governor": "performance\n",
        f"{folder}__cpu1__cpufreq__scaling_governor": "powersave\n",
        f"{folder}__smt__control": "off\n",
        f"{folder}__cpufreq__boost": "1\n",
    }
    found = described(system(tmp_path, **files))
    assert (found["governor"], found["smt"], found["boost"]) == ("performance, powersave", "off", "1")


@pytest.mark.usefixtures("_nothing_else")
def test_a_system_that_does_not_tell_leaves_fields_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On macOS there is no /proc and no affinity."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(platform, "processor", lambda: "arm")
    monkeypatch.setattr(machine, "_cpuinfo", dict)
    found = described(tmp_path)
    assert (found["cpu"], found["governor"], found["smt"], found["gpu"], found["driver"]) == ("arm", "", "", "", "")
    assert (found["quota"], found["virtual"]) == (None, None)
    assert found["cores_usable"] == os.cpu_count()


def test_gpus_and_their_driver_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's own program is asked."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H200, 570.86.10'\necho 'NVIDIA H200, 570.86.10'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    machine._gpu.cache_clear()
    found = described(tmp_path)
    machine._gpu.cache_clear()
    assert (found["gpu"], found["driver"]) == ("NVIDIA H200, NVIDIA H200", "570.86.10")


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"sys__fs__cgroup__cpu.max": "150000 100000"}, 1.5),
        ({"sys__fs__cgroup__cpu.max": "max 100000"}, None),
        ({"sys__fs__cgroup__a__cpu.max": "200000 100000", "sys__fs__cgroup__a__b__cpu.max": "300000 100000"}, 2.0),
    ],
)
def test_a_control_group_may_have_less_than_its_cores(tmp_path: Path, files: dict[str, str], quota: float) -> None:
    """The narrowest group counts; no limit is None."""
    assert described(system(tmp_path, proc__self__cgroup="0::/a/b\n", **files))["quota"] == quota


def test_a_control_group_of_the_first_version_has_a_quota_too(tmp_path: Path) -> None:
    """The quota is in two files, and -1 means no limit."""
    folder = "sys__fs__cgroup__cpu__job__cpu"
    groups = {"proc__self__cgroup": "4:cpu,cpuacct:/job\n3:memory:/other\n", f"{folder}.cfs_period_us": "100000"}
    assert described(system(tmp_path, **groups, **{f"{folder}.cfs_quota_us": "-1"}))["quota"] is None
    assert described(system(tmp_path, **{f"{folder}.cfs_quota_us": "50000"}))["quota"] == 0.5


@pytest.mark.parametrize("field", MUST_AGREE)
def test_each_field_that_has_to_agree_changes_the_id(field: str) -> None:
    """Runs that differ in such a field are not compared."""
    one = describe({})
    other = one | {field: "something else"}
    assert mark(one) == one["id"]
    assert mark(other) != mark(one)


@pytest.mark.parametrize("field", ["versions", "in_force", "blas", "python", "kernel", "libc", "memory_bytes"])
def test_what_is_compared_does_not_change_the_id(field: str) -> None:
    """Two versions of a library on one machine may be compared."""
    one = describe({})
    other = one | {field: "something else"}
    assert mark(other) == mark(one)


def test_a_setting_of_threads_changes_the_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only variables that are set are recorded, and not the place of a library's files."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    one = describe({})
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "somewhere")
    other = describe({})
    assert "OMP_NUM_THREADS" not in one["threads"]
    assert "JAX_COMPILATION_CACHE_DIR" not in other["threads"]
    assert [name for name in MUST_AGREE if one[name] != other[name]] == ["threads"]
    assert one["id"] != other["id"]


@pytest.mark.parametrize("script", ["exit 1", "sleep 5"])
def test_a_program_that_fails_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A slow program gives no output either."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho 'NVIDIA H200, 570'\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(machine, "PATIENCE", 0.5)
    assert machine.output_of("nvidia-smi") == ""
