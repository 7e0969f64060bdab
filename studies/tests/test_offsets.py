"""The table of kernels with 32-bit offsets."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import pytest

from studies import offsets
from studies.common import Unfit


def test_a_row_names_the_arrays_and_axes_that_were_wrong() -> None:
    """A kernel in which nothing was seen has a row that says so, whatever its reason names."""
    kernels: dict[str, Any] = {
        "vllm:decode_attention": {
            "version": "1",
            "outcome": "advisory",
            "reason": "q axis 0: InterpreterError: OutOfRange('8 bytes before q'); k axis 2: other results",
        },
        "fla:parallel_attn": {
            "version": "2",
            "outcome": "passed",
            "reason": "right with entries far apart along q axis 0",
        },
    }
    found = {
        "kernels": kernels,
        "machine": {"versions": {"triton": "3"}},
        "load_average": [0.0, 0.0],
        "threads": 1,
        "written": "then",
    }
    _, _, one, other, *_ = offsets.table(found).splitlines()
    assert one == "| `vllm:decode_attention` | vllm 1 | q 0, k 2 |"
    assert other == "| `fla:parallel_attn` | fla-core 2 | nothing seen |"


def test_without_a_package_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The study ends with one sentence, and not with an empty table."""
    monkeypatch.setattr(importlib.metadata, "distributions", lambda name: [])
    with pytest.raises(Unfit, match="no package"):
        offsets.measure()
