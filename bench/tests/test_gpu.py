"""The GPUs' reports of their clocks, from an nvidia-smi that prints given lines."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.bench.machine import gpu
from attention_conformance.bench.machine.gpu import State, document, notes, states

pytestmark = pytest.mark.slow

#: Newer drivers' output for the numbers, the reasons and the name.
IDLE = "345, 2619, 75.43, 31, 0x0000000000000001, NVIDIA H200"
BUSY = "1980, 3201, 612.07, 58, 0x0000000000000000, NVIDIA H200"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts an nvidia-smi of a few lines of shell first in the search path."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def make(script: str) -> None:
        path = tmp_path / "nvidia-smi"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    return make


def state(**fields: Any) -> State:
    """The state of a GPU at full speed."""
    return State(
        **{**dict(zip(State.__dataclass_fields__, ("it", 1980.0, 3201.0, 600.0, 58.0, 0), strict=True)), **fields}
    )


def said(before: State, after: State) -> list[str]:
    """The notes on one GPU, from what the JSON keeps."""
    return notes(json.loads(json.dumps(document([before], [after]))))


def test_every_gpu_tells_its_clocks_power_temperature_and_reasons(program: Any) -> None:
    """The GPUs are in the driver's order."""
    program(f"echo '{IDLE}'; echo '{BUSY}'")
    one, other = states()
    assert one == State("NVIDIA H200", 345.0, 2619.0, 75.43, 31.0, 1)
    assert other == State("NVIDIA H200", 1980.0, 3201.0, 612.07, 58.0, 0)
    assert (one.idle, other.idle) == (True, False)


def test_the_query_is_one_that_nvidia_smi_knows(program: Any, tmp_path: Path) -> None:
    """The query has nvidia-smi's own field names, and requests numbers without units."""
    program(f'echo "$@" > {tmp_path}/asked; echo "{BUSY}"')
    assert states()
    assert (tmp_path / "asked").read_text().split() == [
        "--query-gpu=clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_event_reasons.active,name",
        "--format=csv,noheader,nounits",
    ]


def test_an_older_driver_is_asked_by_the_older_name(program: Any) -> None:
    """An older driver refuses the whole query if it does not know the name of the reasons."""
    refusal = 'Field "clocks_event_reasons.active" is not a valid field to query.'
    program(f"case \"$1\" in *event_reasons*) echo '{refusal}'; exit 2;; esac; echo '{BUSY}'")
    assert [one.sm_mhz for one in states()] == [1980.0]


@pytest.mark.parametrize("text", ["[N/A]", "N/A", "[Not Supported]", "Not Supported", "[Unknown Error]", ""])
def test_what_a_gpu_does_not_tell_is_none(program: Any, text: str) -> None:
    """A slice of a GPU has no power or no reasons, and neither has one of a desktop."""
    program(f"echo '1980, {text}, {text}, 58, {text}, NVIDIA GeForce'")
    (one,) = states()
    assert one == State("NVIDIA GeForce", 1980.0, None, None, 58.0, None)
    assert (one.idle, one.held_back) == (False, [])


@pytest.mark.parametrize("script", ["exit 1", f"echo '{BUSY}'; exit 9", "echo 'No devices were found'", ":"])
def test_a_program_that_fails_tells_of_no_gpu(program: Any, script: str) -> None:
    """A program with other output gives none either."""
    program(script)
    assert states() == []


def test_without_the_program_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without nvidia-smi nothing is noted."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert states() == []
    assert notes(document([], [])) == notes({}) == []


def test_the_gpus_are_asked_before_and_after_the_work(program: Any, tmp_path: Path) -> None:
    """A change during the work is seen; for work on the CPU only, no GPU is queried."""
    program(f"test -e {tmp_path}/done && echo '{BUSY}' || echo '{IDLE}'")
    found = gpu.around((tmp_path / "done").touch, {"cpu", "cuda"})
    assert [found[when][0]["sm_mhz"] for when in ("before", "after")] == [345.0, 1980.0]
    (tmp_path / "done").unlink()
    assert gpu.around((tmp_path / "done").touch, {"cpu"}) == {}
    assert (tmp_path / "done").exists()


def test_a_clock_that_changed_is_noted() -> None:
    """A change of more than 5 %, in either direction, is noted."""
    (text,) = said(state(), state(sm_mhz=1755.0))
    assert text == "GPU 0: the clock changed by -11%: 1980 MHz before the run, 1755 MHz after it"
    assert said(state(sm_mhz=1755.0), state())
    assert not said(state(), state(sm_mhz=1900.0))
    assert not said(state(), state(sm_mhz=None))


def test_the_clock_of_an_idle_gpu_is_not_compared() -> None:
    """The clock is low when there is no work, as before every run."""
    assert not said(state(sm_mhz=345.0, reasons=gpu.IDLE), state())


def test_what_held_the_clocks_back_is_noted() -> None:
    """Every bit but idle is noted by its name; an unknown bit is a number."""
    (text,) = said(state(reasons=gpu.IDLE), state(reasons=0x4 | 0x40 | 0x1000))
    held = "power cap, thermal slowdown by hardware, 0x1000"
    assert text == f"GPU 0: after the run its clocks were held back by {held}"
