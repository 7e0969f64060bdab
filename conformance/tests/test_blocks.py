"""Block masks and trees of draft tokens: the dense masks that they represent, and mistakes that are named."""

from __future__ import annotations

import numpy as np
import pytest

from attention_conformance.conformance.cases import all_cases
from attention_conformance.conformance.cases.blocks import cases
from attention_conformance.conformance.diagnosis.explanation import Passed
from attention_conformance.conformance.diagnosis.match import diagnose
from attention_conformance.conformance.faults import FAULTS
from attention_conformance.conformance.faults.registry import Fault
from attention_conformance.conformance.faults.trials import Failed, trial
from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.conformance.spec.sdpa import sdpa
from attention_conformance.impls.contract import Profile
from attention_conformance.impls.numpy import blocks

GROUPS = ("sdpa/blocks", "sdpa/trees")
FAULTS_OF_BLOCKS = [fault for fault in FAULTS.values() if fault.group in GROUPS]


def test_a_block_mask_is_the_mask_of_its_blocks() -> None:
    """A block mask equals the dense mask of its blocks, spread by Kronecker's product and cut to the lengths."""
    x = all_cases()["block"].inputs("float32")
    dense = np.kron(x.keywords["block_mask"], np.ones((16, 16), bool))[:, :, :19, :37]
    found = sdpa(x.q, x.k, x.v, mask=dense)
    np.testing.assert_array_equal(found.output, all_cases()["block"].expected("float32").output)


def test_a_tree_is_the_mask_of_its_ancestors() -> None:
    """A tree equals its dense mask, from powers of the matrix of parents, after a prefix that all rows see."""
    x = all_cases()["tree-drawn"].inputs("float32")
    follows = x.keywords["tree_parents"][:, :, None] == np.arange(9)
    seen = np.linalg.inv(np.eye(9) - follows) > 0.5  # the sum of all powers
    dense = np.concatenate([np.ones((2, 9, 5), bool), seen], axis=2)[:, None]
    found = sdpa(x.q, x.k, x.v, mask=dense)
    np.testing.assert_array_equal(found.output, all_cases()["tree-drawn"].expected("float32").output)


def test_a_chain_is_causal() -> None:
    """A tree that is a chain equals a causal mask with the same offset."""
    x = all_cases()["tree-chain"].inputs("float32")
    found = sdpa(x.q, x.k, x.v, is_causal=True, causal_offset=x.keywords["causal_offset"])
    np.testing.assert_array_equal(found.output, all_cases()["tree-chain"].expected("float32").output)


def test_blocks_that_are_false_are_not_read() -> None:
    """The implementation that skips blocks gives the same result with NaN at every key that no block shows."""
    x = all_cases()["block-shared"].inputs("float32")
    table = x.keywords["block_mask"] & np.array([[True, False, True]])
    right = blocks.block_sparse(x.q, x.k, x.v, block_mask=table, block_size=(16, 16))
    k, v = x.k.copy(), x.v.copy()
    k[:, :, 16:32] = v[:, :, 16:32] = np.nan
    np.testing.assert_array_equal(blocks.block_sparse(x.q, k, v, block_mask=table, block_size=(16, 16)), right)
    assert np.isfinite(right).all()


@pytest.mark.slow(9)
@pytest.mark.parametrize("fault", FAULTS_OF_BLOCKS, ids=lambda fault: fault.name)
def test_mistakes_are_caught_and_named(fault: Fault) -> None:
    """Each fault is caught by at least two cases, and the diagnosis names it first."""
    failed, passed = [], []
    for case in cases():
        found = trial(fault.make, case, "float32", Profile.WIDE)
        if found.verdict.outcome is Outcome.FAILED and found.verdict.failure is not None:
            failed.append(Failed(case, "float32", Profile.WIDE, found.verdict.failure, found.reply))
        elif found.verdict.outcome is Outcome.PASSED:
            passed.append(Passed(case, "float32", Profile.WIDE))
    assert len(failed) >= 2
    assert tuple(diagnose(failed, passed, pairs=False)[0].names) == (fault.name,)
