"""Freedom that the spec allows: correct attention in many honest ways passes every case."""

from __future__ import annotations

import pytest

from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.conformance.ledger.load import Ledger
from attention_conformance.conformance.run_case import judge_case
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.contract import DTYPES
from attention_conformance.impls.process.pool import Pool
from attention_conformance.impls.select import plug_in, with_attributes

HONEST = (
    "plain tiles small_tiles large_tiles tiles_from_the_end lazy_rescaling split_keys scaled_queries keys_backwards"
    " base_two ring"
)
ROUNDED = "storage fused flash online tf32 sequential coarse"
LAYERS = (
    "plain fused head_by_head scaled_weight without_key_bias handed flash tf32 sequential stored"
    " plain_sublayer fused_sublayer handed_sublayer flash_sublayer tf32_sublayer sequential_sublayer stored_sublayer"
)
GRADIENTS = "flash flash_one_by_one kept_weights kept_weights_one_by_one every_array tf32"
LAYER_GRADIENTS = "plain row_by_row side_by_side without_key_bias stored"
VARIANTS = [
    *(f"attention_conformance.conformance.tests.honest:{name}" for name in HONEST.split()),
    *(f"attention_conformance.conformance.evidence.variants:{name}" for name in ROUNDED.split()),
    *(f"attention_conformance.conformance.evidence.gradient_variants:{name}" for name in GRADIENTS.split()),
    *(f"attention_conformance.conformance.evidence.mha_variants:{name}" for name in LAYERS.split()),
    *(f"attention_conformance.conformance.evidence.mha_gradient_variants:{name}" for name in LAYER_GRADIENTS.split()),
]


@pytest.mark.parametrize(
    "variant", [VARIANTS[0], *(pytest.param(name, marks=pytest.mark.slow) for name in VARIANTS[1:])]
)
def test_an_honest_variant_passes_every_case(variant: str) -> None:
    """Order of summation, tiles, exp2, pre-scaled q, fused projections and the roundings of a profile are accepted."""
    pool = Pool(in_process=True)
    plugged = plug_in(variant)
    description = pool.call(plugged, "attention_conformance.impls.calls:describe", plugged)
    plugged = with_attributes(plugged, description.attributes)
    ran = 0
    cases = [case for case in every_case().values() if case.operator == plugged.operator]
    for case in cases:
        for dtype in (d for d in case.dtypes if d in (plugged.dtypes or DTYPES)):
            result = judge_case(
                Target(plugged, "cpu", dtype), case, pool, description.keywords, Ledger(), {}, None
            ).result
            assert result.outcome in (Outcome.PASSED, Outcome.ADVISORY), result.message
            ran += 1
    assert ran >= min(50, len(cases) // 3)
