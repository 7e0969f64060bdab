"""Functions given as objects: their framework, their names, and how they reach another process."""

from __future__ import annotations

import gc
import os
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_conformance.impls.calls import Request, call
from attention_conformance.impls.contract import ImplementationError
from attention_conformance.impls.given import _HELD, given
from attention_conformance.impls.process.pool import Pool

ONES = [np.ones((1, 1, 2, 4), np.float32)] * 3


def plain(q: Any, k: Any, v: Any) -> Any:
    """Names no framework."""
    return v


def answer(function: Any, **settings: Any) -> tuple[np.ndarray, str]:
    """The output of a function for ones, in its process, and its name."""
    pool = Pool(in_process=not settings.get("isolated", True))
    with given(function, **settings) as implementation:
        try:
            request = Request.qkv("cpu", *ONES)
            reply = pool.call(implementation, "attention_conformance.impls.calls:call", implementation, request)
        finally:
            pool.close()
    assert reply.status == "returned", reply.text
    return reply.results["output"], implementation.name


def test_a_closure_reaches_another_process() -> None:
    """A closure is sent with the values that it closes over."""
    factor, own = 3.0, os.getpid()

    def scaled(q: Any, k: Any, v: Any) -> Any:
        assert os.getpid() != own
        return factor * v

    output, name = answer(scaled)
    assert name == "scaled"
    assert output.tolist() == (3 * ONES[2]).tolist()


def test_a_function_of_a_module_that_nobody_finds_is_sent_whole(tmp_path: Path) -> None:
    """A function of a module that cannot be imported by name is sent whole, as in a test file that pytest imports."""
    import importlib.util
    import sys

    path = tmp_path / "kernels_of_mine.py"
    path.write_text("FACTOR = 2.0\n\n\ndef doubled(q, k, v):\n    return FACTOR * v\n", encoding="utf-8")
    spec = importlib.util.spec_from_file_location("kernels_of_mine", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kernels_of_mine"] = module
    try:
        spec.loader.exec_module(module)
        assert answer(module.doubled)[0].max() == 2
    finally:
        del sys.modules["kernels_of_mine"]


def test_a_function_can_be_called_here() -> None:
    """The object itself is called in this process."""
    seen = []

    def noting(q: Any, k: Any, v: Any) -> Any:
        seen.append(os.getpid())
        return v

    answer(noting, isolated=False)
    assert seen == [os.getpid()]


def test_two_functions_of_one_name_are_two() -> None:
    """A notebook cell that is run again defines another function."""
    for factor in (1.0, 2.0):

        def attention(q: Any, k: Any, v: Any, factor: float = factor) -> Any:
            return factor * v

        assert answer(attention, isolated=False)[0].max() == factor


def test_what_cannot_be_pickled_is_refused() -> None:
    """A function that cannot be pickled is refused in one sentence that says what to do."""
    lock = threading.Lock()

    def locked(q: Any, k: Any, v: Any) -> Any:
        with lock:
            return v

    with pytest.raises(ImplementationError, match=r"locked cannot be sent to a separate process.*isolated=False"):
        answer(locked)
    assert answer(locked, isolated=False)[0].max() == 1


@pytest.mark.parametrize(
    ("function", "settings", "said"),
    [
        (3, {}, "expected a function, got int"),
        (plain, {"operator": "spda"}, "did you mean sdpa"),
        (plain, {"framework": "tensorflow"}, "unknown framework 'tensorflow'"),
    ],
)
def test_what_is_misspelt_is_refused(function: Any, settings: Any, said: str) -> None:
    """A misspelt setting is refused in one sentence."""
    with pytest.raises(ImplementationError, match=said), given(function, **settings):
        pass


def test_nothing_is_left_behind() -> None:
    """Neither a file nor a module is left behind."""
    import sys

    before = set(sys.modules)
    with given(plain, isolated=False) as implementation:
        place = Path(implementation.target.rpartition(":")[0])
        assert call(implementation, Request.qkv("cpu", *ONES)).status == "returned"
    assert not place.exists()
    assert {name for name in set(sys.modules) - before if "given_function" in name} == set()


def test_nothing_is_kept_of_a_function_of_this_process() -> None:
    """Neither the function, nor its module, nor its folder on the import path is kept."""

    def attention(q: Any, k: Any, v: Any) -> Any:
        return v

    alive, path, modules = weakref.ref(attention), [*sys.path], set(sys.modules)
    with given(attention, "numpy", isolated=False) as implementation:
        assert call(implementation, Request("cpu", dict(zip("qkv", ONES, strict=True)))).status == "returned"
    del attention
    gc.collect()
    assert alive() is None
    assert sys.path == path
    assert not {name for name in set(sys.modules) - modules if name.startswith("_given_function")}
    with pytest.raises(ImplementationError), given(plain, "nothing", isolated=False):
        pass
    assert not _HELD
