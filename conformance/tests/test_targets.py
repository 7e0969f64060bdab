"""Targets: what a run selects, and how often it looks it up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from attention_conformance.conformance import targets
from attention_conformance.impls import envelope_probe, select
from attention_conformance.impls.process.pool import Pool


def test_a_target_has_the_profile_of_its_device() -> None:
    """The profile has a separate key for each device, so that a run on two devices has both."""
    of = {device: targets.Target(select.builtin()["jax-nn"], device, "float32") for device in ("cpu", "cuda")}
    assert {device: one.profile.value for device, one in of.items()} == {"cpu": "wide", "cuda": "tf32"}
    keys = [targets.profile_key("jax-nn", device, "float32") for device in of]
    assert keys == ["jax-nn/float32", "jax-nn/cuda-float32"]


def test_keywords_need_no_second_selection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A selection made without envelopes is not examined again, which would import every library."""
    implementation = select.builtin()["numpy-eager"]
    asked: list[bool] = []

    def examine(*_: Any, probe: bool) -> targets.Selection:
        asked.append(probe)
        return targets.Selection((), {implementation.name: frozenset({"scale"})}, {}, {})

    monkeypatch.setattr(targets, "examine", examine)
    options = {"impl": [implementation.name], "device": [], "dtype": [], "quick": False, "in_process": True}
    config: Any = SimpleNamespace(
        stash=pytest.Stash(),
        getoption=options.get,
        add_cleanup=lambda _: None,
    )
    targets.selection(config, probe=False)
    assert targets.keywords(config, implementation) == {"scale"}
    assert asked == [False]


@pytest.mark.slow(3)
def test_a_process_of_exports_does_not_import_what_they_are_made_with() -> None:
    """The signatures of exported functions are read in a process that imports torch anyway."""
    for package in ("torch", "onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(package)
    chosen = select.select(["torch-eager", "onnx-export23-torch-sdpa"])
    pool = Pool()
    try:
        found = targets.examine(chosen, ["cpu"], ["float32"], pool)
        imported = {
            each.name: pool.call(each, "attention_conformance.bench.tests.test_processes:has_imported", "torch")
            for each in chosen
        }
    finally:
        pool.close()
    assert imported == {"torch-eager": True, "onnx-export23-torch-sdpa": False}
    assert "mask" in found.keywords["onnx-export23-torch-sdpa"]


def test_libraries_are_imported_before_the_first_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of all installed implementations are started together."""
    pool, started = Pool(), []
    monkeypatch.setattr(pool, "start", lambda implementations: started.extend(implementations))
    chosen = select.select(["numpy-eager", "numpy-tiled"])
    try:
        targets.examine(chosen, ["cpu"], ["float32"], pool)
    finally:
        pool.close()
    assert started == list(chosen)


class Machine(Pool):
    """A machine with a GPU, and a function whose probe accepts these dtypes on each device."""

    def __init__(self, taken: dict[str, tuple[str, ...]]) -> None:
        super().__init__()
        self.taken, self.probed = taken, list[str]()

    def call(self, implementation: Any, function: str, *arguments: Any, **_: Any) -> Any:
        """The devices, or the result of a probe on one of them."""
        if function.endswith(":devices"):
            return "cpu", "cuda"
        device = arguments[1]
        self.probed.append(device)
        return envelope_probe.Probed(dtypes=self.taken[device])


@pytest.mark.parametrize(
    ("asked", "taken", "probed"),
    [
        ([], {"cuda": ("float16",)}, ["cuda"]),
        (["cuda"], {"cuda": ()}, ["cuda"]),
        (["cpu"], {"cpu": ("float16",)}, ["cpu"]),
        ([], {"cuda": (), "cpu": ("float16",)}, ["cuda", "cpu"]),
    ],
)
def test_a_probe_calls_on_the_devices_of_the_run(
    asked: list[str], taken: dict[str, tuple[str, ...]], probed: list[str]
) -> None:
    """A CUDA-only kernel run with ``--device cuda`` is not probed on the CPU, where it takes no sizes."""
    implementation = select.builtin()["torch-eager"]
    machine = Machine(taken)
    found = targets._probed(implementation, machine, False, asked)
    assert machine.probed == probed
    assert found.dtypes == (taken[probed[-1]] or implementation.dtypes)
