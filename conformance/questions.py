"""The questions on which today's libraries disagree, each with the case that asks it and the spec's answer.

A result file answers them: the table "how libraries answer" of a report is made from these cases.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Question:
    """A question short enough for a table's heading."""

    text: str
    case: str
    #: What a result that passes does.
    right: str


QUESTIONS = (
    Question("row without a key, boolean mask", "empty-row", "zeros"),
    Question("row without a key, bias of −inf", "bias-minus-inf-row", "zeros"),
    Question("mask together with is_causal", "combined-mask-causal", "both hold"),
    Question("is_causal, Sq < Sk", "causal-more-keys", "top left"),
    Question("is_causal, Sq > Sk", "causal-more-queries", "top left"),
    Question("Sk = 0", "empty-keys", "zeros"),
    Question("Sq = 0", "empty-queries", "empty"),
    Question("scale < 0", "scale-negative", "ok"),
    Question("scale < 0 with is_causal", "scale-negative-causal", "ok"),
    Question("scale = 0 with is_causal", "scale-zero-causal", "ok"),
    Question("mask of shape (1, 1, 1, Sk)", "mask-broadcast-k", "ok"),
    Question("Dv ≠ D", "value-width-larger", "ok"),
    Question("NaN in a query row", "nan-query", "NaN"),
    Question("NaN in a masked value", "masked-nan-values", "kept out"),
    Question("k and v of unequal length", "invalid-lengths", "refused"),
    Question("heads not divisible", "invalid-heads", "refused"),
)
