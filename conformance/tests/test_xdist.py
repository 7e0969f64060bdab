"""``pytest -n``: a run spread over processes gives what one process gives."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attention_conformance.conformance.properties.properties import PROPERTIES
from attention_conformance.conformance.properties.serving_properties import SERVING_PROPERTIES
from attention_conformance.conformance.results import read
from attention_conformance.conformance.run.xdist import costly_first, scheduler, scope
from attention_conformance.conformance.targets import Target
from attention_conformance.conformance.tests.test_plugin import plug_in, run
from attention_conformance.impls.contract import Implementation
from attention_conformance.impls.select import builtin

pytestmark = pytest.mark.slow(30)

pytest.importorskip("xdist")

MINE = ("--impl", "mykernels.py:attention", "--impl", "numpy-eager", "--dtype", "float32")
CASES = ("--case", "causal*", "--case", "plain*")
TIMES = ("run_seconds", "prepare_seconds", "started")

#: Attention without scale: wrong, and a known fault.
UNSCALED = """
import numpy as np
def attention(q, k, v, *, is_causal=False):
    k, v = (np.repeat(a, q.shape[1] // a.shape[1], axis=1) for a in (k, v))
    s = q @ k.swapaxes(-1, -2)
    if is_causal:
        s = np.where(np.arange(s.shape[3]) <= np.arange(s.shape[2])[:, None], s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v
"""


def records(path: Path) -> list[dict[str, Any]]:
    """The lines of a result file without the fields that differ from run to run."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [{key: value for key, value in line.items() if key not in TIMES} for line in lines]


def messages(printed: str) -> list[str]:
    """The failure messages of a run, whole, in alphabetical order."""
    return sorted(re.findall(r"^mykernels.py:attention on cpu in .*?^Rerun: [^\n]*$", printed, re.M | re.S))


def test_the_result_file_is_the_same(tmp_path: Path) -> None:
    """Header, results, their order, counts and diagnoses are equal; only times differ."""
    folder = plug_in(tmp_path, UNSCALED)
    alone = run(folder, *MINE, *CASES, "--conformance-json", "alone.jsonl")
    spread = run(folder, *MINE, *CASES, "--conformance-json", "spread.jsonl", "-n", "2")
    assert alone.returncode == spread.returncode == 1
    assert records(tmp_path / "spread.jsonl") == records(tmp_path / "alone.jsonl")
    assert read(tmp_path / "spread.jsonl").complete
    assert not list(tmp_path.glob("*.sorted"))


def test_the_messages_are_the_same(tmp_path: Path) -> None:
    """Each failure has its diagnosis and script once, and the table and the diagnosis are at the end."""
    folder = plug_in(tmp_path, UNSCALED)
    alone, spread = (run(folder, *MINE, *CASES, "-vv", *more).stdout for more in ((), ("-n", "2")))
    assert len(messages(alone)) > 5
    assert messages(spread) == messages(alone)
    assert "Diagnosis: " in messages(spread)[0]
    for text in ("== diagnosis ==", "== conformance =="):
        assert text in spread
        assert spread.partition(text)[2].count("mykernels.py:attention") >= 1


def test_one_cause_is_one_message_when_spread(tmp_path: Path) -> None:
    """The message, the lines of the other failures and the end are those of a run in one process."""
    folder = plug_in(tmp_path, UNSCALED)
    alone, spread = (run(folder, *MINE, *CASES, *more).stdout for more in ((), ("-n", "2")))
    assert len(messages(alone)) == 1
    for begin, end in (("= FAILURES =", "= conformance ="), ("= diagnosis =", " failed, ")):
        told = [printed.partition(begin)[2].partition(end)[0] for printed in (alone, spread)]
        assert told[0].rpartition("\n")[0] == told[1].rpartition("\n")[0]
    assert "FAILED " not in spread


def test_random_problems_are_the_same(tmp_path: Path) -> None:
    """All processes draw with the seed in the header."""
    folder = plug_in(tmp_path)
    options = (*MINE, "--case", "plain", "--fuzz", "3", "--conformance-json", "o.jsonl", "-n", "2")
    done = run(folder, *options)
    assert done.returncode == 0, done.stdout
    found = read(tmp_path / "o.jsonl")
    assert found.complete
    asked = {name for name, prop in {**PROPERTIES, **SERVING_PROPERTIES}.items() if prop.operator == "sdpa"}
    names = [result.case.removeprefix("fuzz/") for result in found.results if result.case.startswith("fuzz/")]
    assert sorted(names) == sorted([*asked, *asked])  # of two implementations


def test_a_run_that_executed_nothing_fails(tmp_path: Path) -> None:
    """If every case is unsupported the run fails, spread or not."""
    text = "def attention(q, k, v):\n    raise NotImplementedError('later')\n"
    done = run(plug_in(tmp_path, text), "--impl", "mykernels.py:attention", "--case", "plain*", "-n", "2")
    assert done.returncode == 1
    assert "nothing was executed" in done.stdout


@pytest.mark.parametrize(
    ("nodeid", "expected"),
    [
        ("conformance/test_conformance.py::test_sdpa[torch-eager-cpu-float32-plain]", "torch-eager"),
        (
            "conformance/test_conformance.py::test_sdpa[torch-eager-gradients-cpu-float32-grad-plain]",
            "torch-eager-gradients",
        ),
        ("test_conformance.py::test_sdpa[my-cpu-kernels.py:f-cuda-bfloat16-plain]", "my-cpu-kernels.py:f"),
        ("conformance/test_properties.py::test_fuzz[jax-jit-cpu-float32-keys-split]", "jax-jit"),
        (
            "conformance/tests/test_kill_matrix.py::test_every_fault_is_caught_twice",
            "conformance/tests/test_kill_matrix.py",
        ),
        ("conformance/tests/test_x.py::test_y[float32-a]", "conformance/tests/test_x.py"),
    ],
)
def test_what_stays_together(nodeid: str, expected: str) -> None:
    """The cases of an implementation stay together, and the tests of a file."""
    assert scope(nodeid) == expected


class Node:
    """A worker that finishes each test at once."""

    shutting_down = False
    gateway = SimpleNamespace(id="gw0")

    def __init__(self) -> None:
        self.given: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        """Take tests, by their index in the collection."""
        self.given += indices

    def shutdown(self) -> None:
        """Shut down."""
        self.shutting_down = True


def item(nodeid: str, slow: float | None = None, implementation: Implementation | None = None) -> Any:
    """A test; of a target if an implementation is given."""
    target = None if implementation is None else Target(implementation, "cpu", "float32")
    marks = {} if slow is None else {"slow": pytest.mark.slow(*([slow] if slow else ())).mark}
    found = SimpleNamespace(nodeid=nodeid, get_closest_marker=marks.get)
    if target is not None:
        found.callspec = SimpleNamespace(params={"target": target})
    return found


def scopes(items: list[Any]) -> list[str]:
    """The scopes of tests in the order in which a single worker gets them, each once."""
    costly_first(items)
    option = SimpleNamespace(loadscopereorder=True)
    config: Any = SimpleNamespace(option=option, getvalue=lambda _: ["popen"])
    scheduling = scheduler(config, None)
    node = Node()
    scheduling.add_node(node)
    scheduling.add_node_collection(node, [each.nodeid for each in items])
    scheduling.schedule()
    for number in range(len(items)):
        scheduling.mark_test_complete(node, node.given[number])
    assert sorted(node.given) == list(range(len(items)))
    return list(dict.fromkeys(scope(items[index].nodeid) for index in node.given))


def test_what_takes_long_begins_first() -> None:
    """A file with one slow test comes before a larger one, and of the others the largest comes first."""
    files = ("one.py", "three.py", "three.py", "three.py", "slow.py", "slow.py", "two.py", "two.py")
    items = [item(f"{name}::test_{number}", slow=0 if number == 5 else None) for number, name in enumerate(files)]
    assert scopes(items) == ["slow.py", "three.py", "two.py", "one.py"]


def test_the_slowest_begins_first() -> None:
    """Of two files with slow tests the one whose mark has more seconds comes first, though it has fewer tests."""
    items = [item("some.py::test_1", slow=0), item("some.py::test_2", slow=0), item("long.py::test_1", slow=90)]
    assert scopes(items) == ["long.py", "some.py"]


def test_what_is_compiled_for_each_case_begins_first() -> None:
    """An implementation that is compiled comes before one that has more cases."""
    plain, compiled = builtin()["torch-eager"], builtin()["torch-compile"]
    items = [item("test_files.py::test_1"), item("test_files.py::test_2"), item("test_files.py::test_3")]
    for some, cases in ((plain, ("a", "b")), (compiled, ("a",))):
        items += [item(f"c.py::test_sdpa[{some.name}-cpu-float32-{case}]", implementation=some) for case in cases]
    assert scopes(items) == ["torch-compile", "test_files.py", "torch-eager"]
