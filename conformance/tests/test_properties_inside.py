"""Random problems inside an envelope: sizes, fields for each batch, and calls that are not made."""

from __future__ import annotations

from pathlib import Path

import hypothesis
import pytest

from attention_conformance.conformance.cases.data import Shape
from attention_conformance.conformance.cases.packed import PackedShape, PagedShape
from attention_conformance.conformance.properties.inside import is_outside, problem_within
from attention_conformance.conformance.properties.problem import Problem
from attention_conformance.conformance.properties.serving import ServingProblem
from attention_conformance.conformance.properties.strategies import Space, problems
from attention_conformance.conformance.tests.test_plugin import plug_in, run
from attention_conformance.impls.envelope import Envelope, Sizes

KERNEL = Envelope(
    head_widths=Sizes((64, 128)),
    query_lengths=Sizes.read("multiple of 32"),
    key_lengths=Sizes.read("multiple of 32"),
    equal_widths=True,
)


@hypothesis.settings(max_examples=200, database=None, deadline=None)
@hypothesis.given(problems(Space()))
def test_every_problem_has_sizes_inside(problem: Problem) -> None:
    """Every problem has sizes inside the envelope, and as many lengths and offsets as batches."""
    found = problem_within(problem, KERNEL)
    assert found is not None
    assert found.shape in KERNEL
    inputs = found.case().make_inputs("float32")
    assert not is_outside(inputs, KERNEL)


def test_a_problem_inside_stays() -> None:
    """A problem inside the envelope is returned itself."""
    problem = Problem("", Shape(2, 2, 2, 32, 64, 64, 64))
    assert problem_within(problem, KERNEL) is problem


def test_what_is_had_for_each_batch_follows_the_batches() -> None:
    """Offsets and lengths are repeated for more batches, and cut for fewer."""
    problem = Problem("", Shape(2, 1, 1, 3, 5, 8, 8), is_causal=True, causal_offset=(1, 2), kv_lengths=(3, 4))
    for batches, offsets, lengths in ((3, (1, 2, 1), (3, 4, 3)), (1, (1,), (3,))):
        found = problem_within(problem, Envelope(batch_sizes=Sizes((batches,))))
        assert isinstance(found, Problem)
        assert (found.shape.b, found.causal_offset, found.kv_lengths) == (batches, offsets, lengths)


def test_packs_keep_their_lengths() -> None:
    """Only heads, widths and pages are fitted to the envelope."""
    envelope = Envelope(group_sizes=Sizes((1,)), head_widths=Sizes((64,)), page_sizes=Sizes((16,)))
    pack = problem_within(ServingProblem("", "varlen", PackedShape((2, 3), (4, 5), hq=4, hkv=2)), envelope)
    pages = problem_within(ServingProblem("", "paged", PagedShape((1, 1), (4, 5), hq=4, hkv=2, page=4)), envelope)
    assert pack is not None
    assert pages is not None
    assert isinstance(pack.shape, PackedShape)
    assert isinstance(pages.shape, PagedShape)
    assert (pack.shape.q_lengths, pack.shape.k_lengths) == ((2, 3), (4, 5))
    assert (pack.shape.hq // pack.shape.hkv, pack.shape.d) == (1, 64)
    assert pages.shape.page == 16
    for problem in (pack, pages):
        assert not is_outside(problem.case().make_inputs("float32"), envelope)


def test_a_tree_whose_lengths_are_not_taken_is_no_problem() -> None:
    """A tree is not resized, as the keys before and after it are made for its own lengths."""
    tree = ServingProblem("", "sdpa", Shape(1, 1, 1, 3, 5, 64, 64), (("tree_parents", ("chain", False)),))
    assert problem_within(tree, KERNEL) is None


def test_calls_that_go_apart_are_outside() -> None:
    """A problem with options that are not taken together is outside."""
    envelope = Envelope(not_together=(frozenset({"is_causal", "scale"}),))
    problem = Problem("", is_causal=True, scale=1.0)
    assert is_outside(problem.case().make_inputs("float32"), envelope)
    assert not is_outside(Problem("", is_causal=True).case().make_inputs("float32"), envelope)


TILED = """
import numpy as np
def attention(q, k, v, *, is_causal=False):
    if q.shape[3] != 64 or q.shape[2] % 32 or k.shape[2] % 32:
        raise ValueError("no such tile")
    k, v = (np.repeat(a, q.shape[1] // a.shape[1], axis=1) for a in (k, v))
    s = q @ k.swapaxes(-1, -2) / 8
    if is_causal:
        s = np.where(np.arange(s.shape[3]) <= np.arange(s.shape[2])[:, None], s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v
attention.head_widths, attention.lengths, attention.equal_widths = 64, "multiple of 32", True
"""


@pytest.mark.slow(15)
@pytest.mark.parametrize(("scale", "code"), [("8", 0), ("7.9", 1)])
def test_a_kernel_of_tiles_is_asked_its_own_sizes(tmp_path: Path, scale: str, code: int) -> None:
    """A right kernel passes and a wrong one fails; neither is called with sizes that it does not take."""
    folder = plug_in(tmp_path, TILED.replace("/ 8", f"/ {scale}"))
    words = ("--impl", "mykernels.py:attention", "--dtype", "float32", "-k", "test_fuzz", "--fuzz", "20")
    done = run(folder, *words)
    assert done.returncode == code, done.stdout
    assert "no such tile" not in done.stdout
    assert ("agrees-with-reference: wrong by value" in done.stdout) == bool(code)


def test_inputs_outside_are_seen() -> None:
    """A size outside is noticed on each axis."""
    right = Shape(2, 2, 2, 32, 64, 64, 64)
    wrong = (Shape(2, 2, 2, 33, 64, 64, 64), Shape(2, 2, 2, 32, 5, 64, 64), Shape(2, 2, 2, 32, 64, 64, 128))
    assert not is_outside(Problem("", right).case().make_inputs("float32"), KERNEL)
    assert all(is_outside(Problem("", each).case().make_inputs("float32"), KERNEL) for each in wrong)
