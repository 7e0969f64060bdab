"""GPUs before and after a run: clocks, power, temperature, and the reasons that hold the clocks back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from attention_conformance.bench.machine.machine import output_of

Number = TypeVar("Number", int, float)

#: Numbers that nvidia-smi is queried for, with our names; the reasons and the product's name follow them in the query.
NUMBERS = {
    "clocks.sm": "sm_mhz",
    "clocks.mem": "memory_mhz",
    "power.draw": "watts",
    "temperature.gpu": "celsius",
}

#: Names of the reasons in newer and older drivers; a driver refuses a whole query that has a name it lacks.
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")

#: Bits of the reasons.  Source: https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
IDLE = 0x1
NAMES = {
    IDLE: "idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal slowdown by software",
    0x40: "thermal slowdown by hardware",
    0x80: "power brake",
    0x100: "display clocks",
}

#: Share by which the clock of the multiprocessors may change without a note.
DRIFT = 0.05


@dataclass(frozen=True)
class State:
    """State of one GPU; None for what it does not report."""

    name: str
    sm_mhz: float | None
    memory_mhz: float | None
    watts: float | None
    celsius: float | None
    #: Bits of NAMES.
    reasons: int | None

    @property
    def idle(self) -> bool:
        """Whether its clocks are low because it has no work."""
        return bool((self.reasons or 0) & IDLE)

    @property
    def held_back(self) -> list[str]:
        """Reasons other than idleness that hold its clocks back; a bit without a name is given as a number."""
        found = (1 << bit for bit in range((self.reasons or 0).bit_length()) if (self.reasons or 0) >> bit & 1)
        return [NAMES.get(bit, hex(bit)) for bit in found if bit != IDLE]


def states() -> list[State]:
    """All NVIDIA GPUs now, in the driver's order; none where nvidia-smi is missing or fails."""
    for reasons in REASONS:
        query = ",".join((*NUMBERS, reasons, "name"))
        said = output_of("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits")
        if said:
            lines = (line.split(", ", len(NUMBERS) + 1) for line in said.splitlines())
            return [_state(fields) for fields in lines if len(fields) == len(NUMBERS) + 2]
    return []


def around(work: Callable[[], None], devices: Iterable[str]) -> dict[str, Any]:
    """Do some work on devices; the states of the GPUs before and after it, nothing if no device is a GPU."""
    if all(device == "cpu" for device in devices):
        work()
        return {}
    before = states()
    work()
    return document(before, states())


def document(before: Sequence[State], after: Sequence[State]) -> dict[str, Any]:
    """States of the GPUs as the JSON has them."""
    return {"before": [asdict(one) for one in before], "after": [asdict(one) for one in after]}


def notes(gpu_state: Mapping[str, Any]) -> list[str]:
    """Notes for a reader of ``document``: changed clocks of busy GPUs, and the reasons that held clocks back."""
    before, after = ([State(**one) for one in gpu_state.get(when, ())] for when in ("before", "after"))
    found = []
    for number, (one, other) in enumerate(zip(before, after, strict=False)):
        if one.sm_mhz and other.sm_mhz and not (one.idle or other.idle):
            change = other.sm_mhz / one.sm_mhz - 1
            if abs(change) > DRIFT:
                clocks = f"{one.sm_mhz:.0f} MHz before the run, {other.sm_mhz:.0f} MHz after it"
                found.append(f"GPU {number}: the clock changed by {change:+.0%}: {clocks}")
    for when, states in (("before", before), ("after", after)):
        for number, one in enumerate(states):
            if one.held_back:
                found.append(f"GPU {number}: {when} the run its clocks were held back by {', '.join(one.held_back)}")
    return found


def _state(fields: Sequence[str]) -> State:
    *numbers, reasons, name = fields
    found = {key: _number(text, float) for key, text in zip(NUMBERS.values(), numbers, strict=True)}
    return State(name=name, reasons=_number(reasons, lambda text: int(text, 16)), **found)


def _number(text: str, read: Callable[[str], Number]) -> Number | None:
    """A number; None for "[N/A]", "Not Supported", "[Unknown Error]" and the like."""
    try:
        return read(text)
    except ValueError:
        return None
