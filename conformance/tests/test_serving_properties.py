"""Properties of the serving forms: they hold for right implementations, and find wrong ones."""

from __future__ import annotations

import re

import numpy as np
import pytest

from attention_conformance.conformance.cases.base import Case
from attention_conformance.conformance.cases.latent import LatentCase
from attention_conformance.conformance.cases.merge import MergeCase, Parts, sizes
from attention_conformance.conformance.cases.merge_gradient import MergeGradientCase
from attention_conformance.conformance.cases.packed import PackedCase, PackedShape, PagedCase, PagedShape
from attention_conformance.conformance.cases.varlen_gradient import PackedGradientCase
from attention_conformance.conformance.faults.kill_matrix import implementation
from attention_conformance.conformance.faults.registry import FAULTS
from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.ledger.load import read
from attention_conformance.conformance.properties.run import Setting, fuzz
from attention_conformance.conformance.properties.serving import (
    FEW_SIZES,
    FORMS,
    PALETTES,
    ServingProblem,
    drawn,
    of_rng,
)
from attention_conformance.conformance.properties.serving_properties import SERVING_PROPERTIES
from attention_conformance.conformance.properties.trial import Context
from attention_conformance.conformance.spec.clauses import Level, clauses
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.contract import Implementation
from attention_conformance.impls.operators import OPERATORS
from attention_conformance.impls.process.pool import Pool
from attention_conformance.impls.select import builtin

#: A fault that each property must find.
WRONG = {
    "varlen-agrees-with-reference": "packed-top-left",
    "varlen-sequence-alone": "packed-boundaries-ignored",
    "varlen-sequences-permuted": "packed-prefix-seen",
    "varlen-keys-split": "packed-lse-base2",
    "varlen-grad-agrees-with-reference": "packed-gradient-top-left",
    "varlen-grad-sequence-alone": "packed-gradient-boundaries-ignored",
    "varlen-grad-sequences-permuted": "packed-gradient-boundaries-ignored",
    "paged-agrees-with-reference": "paged-top-left",
    "paged-sequence-alone": "paged-next-table",
    "paged-sequences-permuted": "paged-first-table",
    "paged-pages-permuted": "paged-table-ignored",
    "paged-unused-slots": "paged-whole-pages",
    "quantised-agrees-with-reference": "quantised-one-scale",
    "quantised-pages-permuted": "quantised-first-scale",
    "quantised-dequantised-before": "quantised-value-scale-ignored",
    "merge-agrees-with-reference": "parts-averaged",
    "merge-parts-permuted": "weights-reversed",
    "merge-merged-in-two-steps": "lse-returned-in-base-two",
    "merge-part-without-keys": "empty-part-counts",
    "merge-grad-agrees-with-reference": "merge-weights-constant",
    "merge-grad-gradients-permuted": "merge-gradient-parts-swapped",
    "merge-grad-gradients-add-up": "merge-gradient-rows-skipped",
    "merge-grad-gradients-without-keys": "merge-gradient-empty-counts",
    "blocks-agrees-with-reference": "block-mask-inverted",
    "blocks-as-dense-mask": "blocks-square",
    "blocks-blocks-permuted": "block-rows-see-first",
    "blocks-smaller-blocks": "block-sizes-exchanged",
    "blocks-every-block": "blocks-without-mask",
    "blocks-rows-of-a-block-alone": "blocks-one-row-longer",
    "blocks-block-of-no-row": "block-rows-see-all",
    "blocks-head-alone": "block-mask-first-head",
    "trees-agrees-with-reference": "tree-siblings",
    "trees-as-mask-of-ancestors": "tree-transposed",
    "trees-path-alone": "tree-causal",
    "trees-nodes-in-another-order": "tree-parents-one-less",
    "trees-chain-is-causal": "tree-parent-only",
    "trees-batch-alone": "tree-first-batch",
    "trees-tree-behind-a-past": "past-causal-top-left",
    "latent-agrees-with-reference": "latent-not-transposed",
    "latent-head-alone": "latent-rope-of-first-head",
    "latent-projected-before": "latent-values-of-next-head",
    "latent-absorbed-before": "latent-scale-of-cache",
    "latent-rotary-part-as-columns": "latent-without-rope",
    "latent-queries-doubled": "latent-scale-one",
    "latent-tokens-permuted": "latent-values-fall-behind",
    "latent-tokens-split": "latent-lse-without-rope",
}

#: Keywords that problems of a form lack: those of other forms, and for trees what TREE-4 leaves open.
_PLACED = {"alibi_slopes", "head_scale", "rotary_cos", "rotary_sin", "rotary_interleaved", "past_key", "past_value"}
NOT_DRAWN = {
    "paged": {"k_scale", "v_scale"},
    "blocks": _PLACED | {"tree_parents"},
    "trees": _PLACED | {"window"},
}

#: Right built-in implementations of each operator.
RIGHT = {each.operator: name for name, each in builtin().items() if name.startswith("numpy")} | {"sdpa": "numpy-eager"}


def run(prop: str, tested: Implementation, dtype: str, examples: int, *, shrink: bool = False) -> Result:
    """The result of a property."""
    keywords = frozenset(OPERATORS[tested.operator].keywords) - {"num_splits"}
    context = Context(Target(tested, "cpu", dtype), Pool(in_process=True), keywords)
    return fuzz(SERVING_PROPERTIES[prop], context, Setting(examples, 1, shrink))


each_property = pytest.mark.parametrize("prop", list(SERVING_PROPERTIES))


def test_each_property_has_a_fault_and_a_must() -> None:
    """Each property has a fault and a MUST clause, and belongs to a form with random problems."""
    assert WRONG.keys() == SERVING_PROPERTIES.keys()
    assert {prop.form for prop in SERVING_PROPERTIES.values()} == set(FORMS)
    assert all(clauses()[prop.clause].level is Level.MUST for prop in SERVING_PROPERTIES.values())


@pytest.mark.slow(8)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@each_property
def test_a_right_one_has_every_property(prop: str, dtype: str) -> None:
    """A right implementation passes with the requested number of examples."""
    result = run(prop, builtin()[RIGHT[SERVING_PROPERTIES[prop].operator]], dtype, 12)
    assert (result.outcome, result.reason) == (Outcome.PASSED, "12 examples"), result.message


@pytest.mark.slow(3)
@each_property
def test_a_wrong_one_fails_its_property(prop: str) -> None:
    """Each property finds a fault of its form."""
    result = run(prop, implementation(FAULTS[WRONG[prop]]), "float32", 60)
    assert (result.outcome, result.failure) == (Outcome.FAILED, Failure.VALUE), prop
    assert result.broken in clauses()


def test_a_failure_shrinks_and_its_line_is_a_case_that_fails() -> None:
    """The counterexample is a small pack; the line to paste gives a case with its problem."""
    result = run("varlen-agrees-with-reference", implementation(FAULTS["packed-top-left"]), "float32", 60, shrink=True)
    (line,) = re.findall(r"yield (ServingProblem.*)", result.message)
    known = {each.__name__: each for each in (ServingProblem, PackedShape, PagedShape, Parts)}
    case = eval(line, known)  # noqa: S307  # the line is to be pasted into a file of Python
    assert isinstance(case, PackedCase)
    assert sum(case.shape.q_lengths) <= 4
    assert case.keywords & {"is_causal", "window"}
    assert case.dtypes == ("float32",)


def known_by(record: str, fake: str, prop: str) -> tuple[Result, Result]:
    """The results of a property for a fake, with and without a record of the ledger about it."""
    target = f"attention_conformance.conformance.tests.property_fakes:{fake}"
    keywords = frozenset(OPERATORS["varlen"].keywords) - {"num_splits", "sinks"}
    records = tuple(each for each in read().deviations if each.id == record)
    assert records
    tested = Target(Implementation(fake, target, operator="varlen"), "cpu", "float32")
    with_it, without = (
        fuzz(
            SERVING_PROPERTIES[prop],
            Context(tested, Pool(in_process=True), keywords, each),
            Setting(200, 1, shrink=False),
        )
        for each in (records, ())
    )
    return with_it, without


@pytest.mark.slow(7)
@pytest.mark.parametrize(
    ("record", "fake"),
    [("jax-varlen-nn-empty-rows", "packed_mean"), ("varlen-flex-no-keys", "packed_without_keys")],
)
@pytest.mark.parametrize("prop", ["varlen-agrees-with-reference", "varlen-sequence-alone"])
def test_a_recorded_deviation_of_packs_is_not_a_failure(prop: str, record: str, fake: str) -> None:
    """Records about fully masked rows, and packs without one, excuse these; without the record each fails."""
    known, unknown = known_by(record, fake, prop)
    assert (known.outcome, known.reason) == (Outcome.KNOWN_DEVIATION, f"only where the ledger says so [{record}]")
    assert unknown.outcome is Outcome.FAILED


def test_a_recorded_deviation_of_packs_excuses_no_other_row() -> None:
    """Rows with keys must stay within their bound next to excused rows; another kind of failure is not excused."""
    other, _ = known_by("jax-varlen-nn-empty-rows", "packed_mean_of_more", "varlen-agrees-with-reference")
    assert (other.outcome, other.failure) == (Outcome.FAILED, Failure.VALUE)
    kind, _ = known_by("jax-varlen-nn-empty-rows", "packed_without_keys", "varlen-agrees-with-reference")
    assert (kind.outcome, kind.failure) == (Outcome.FAILED, Failure.ERROR)


@pytest.mark.parametrize("form", FORMS)
def test_problems_are_drawn_of_every_keyword(form: str) -> None:
    """Problems cover every keyword of their form as cases of its operator; missing keywords are not given."""
    made = {
        "varlen": PackedCase,
        "varlen_grad": PackedGradientCase,
        "paged": PagedCase,
        "merge": MergeCase,
        "merge_grad": MergeGradientCase,
        "sdpa": Case,
        "latent": LatentCase,
    }
    keywords = set(OPERATORS[FORMS[form]].keywords) - {"max_seqlen_q", "max_seqlen_k", "num_splits"}
    keywords -= NOT_DRAWN.get(form, set())
    met: set[str] = set()
    for seed in range(60):
        case = drawn(of_rng(np.random.default_rng(seed)), form).case()
        assert type(case) is made[FORMS[form]]
        met |= case.keywords
    assert met == keywords
    if form not in ("merge", "merge_grad"):
        few = [drawn(of_rng(np.random.default_rng(n)), form, ("is_causal", "return_lse")) for n in range(20)]
        own = {"blocks": {"block_mask", "block_size"}, "trees": {"tree_parents"}}.get(form, set())
        assert {name for each in few for name, _ in each.options} == {"is_causal", "return_lse"} & keywords | own


def test_where_shapes_cost_there_are_few() -> None:
    """Costly shapes come from a short list for each form, and block sizes too."""
    for form, palette in PALETTES.items():
        problems = [drawn(of_rng(np.random.default_rng(n)), form, few=True) for n in range(20)]
        assert {each.shape for each in problems} == set(palette)
        sizes = {size for each in problems for size in dict(each.options).get("block_size", ())}
        assert sizes <= set(FEW_SIZES)


def test_a_tree_stands_within_the_keys() -> None:
    """Trees have keys before and after them, one tree for each batch or one for all, and different offsets."""
    problems = [drawn(of_rng(np.random.default_rng(n)), "trees") for n in range(100)]
    offsets = [np.ravel(dict(each.options).get("causal_offset", 0)) for each in problems]
    room = [each.shape.sk - each.shape.sq for each in problems]
    assert all(0 <= at.min() <= at.max() <= space for at, space in zip(offsets, room, strict=True))
    assert any(at.max() < space for at, space in zip(offsets, room, strict=True))
    assert any(len(set(at.tolist())) > 1 for at in offsets)
    assert {each.case().inputs("float32").keywords["tree_parents"].ndim for each in problems} == {1, 2}


def test_rows_without_a_block_are_drawn() -> None:
    """Tables have rows without a block, and are for all heads and batches or for each."""
    problems = [drawn(of_rng(np.random.default_rng(n)), "blocks") for n in range(100)]
    tables = [each.case().inputs("float32").keywords["block_mask"] for each in problems]
    assert any(not table.any(axis=-1).all() and table.any() for table in tables)
    assert {table.ndim for table in tables} == {2, 4}


def test_a_part_without_a_key_is_drawn() -> None:
    """Some rows have parts without a key, with a log-sum-exp of −inf and an output of zeros."""
    problem = ServingProblem("some", "merge", sizes(parts=5), empty=0.5)
    x = problem.case().inputs("float32")
    none = np.isneginf(x.lses)
    assert 0 < none.sum() < none.size
    assert not x.outputs[none].any()
