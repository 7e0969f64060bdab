"""Questions on which today's libraries disagree, each with the case that asks it and the spec's answer.

A result file answers them: the tables of divergence of a report and of DEVIATIONS.md are made from it.
"""

from __future__ import annotations

from dataclasses import dataclass

#: The dtype that the questions are asked in.
DTYPE = "float32"


@dataclass(frozen=True)
class Question:
    """A question short enough for a table's heading."""

    text: str
    case: str
    #: The answer of a result that passes.
    right: str


QUESTIONS = (
    # Fully masked rows.
    Question("fully masked row, boolean mask", "empty-row", "zeros"),
    Question("fully masked row, bias of −inf", "bias-minus-inf-row", "zeros"),
    Question("fully masked row, bias of −inf and mask", "combined-mask-bias-minus-inf", "zeros"),
    Question("fully masked row, kv_lengths of 0", "lengths-zero", "zeros"),
    Question("fully masked row, kv_lengths of 0, Sq = Sk", "lengths-square-zero", "zeros"),
    Question("fully masked row, lse requested", "empty-row-lse", "−inf"),
    Question("row of the smallest finite bias", "bias-smallest-all", "mean of v"),
    # Masks.
    Question("mask together with is_causal", "combined-mask-causal", "both hold"),
    Question("is_causal, Sq < Sk", "causal-more-keys", "top left"),
    Question("is_causal, Sq > Sk", "causal-more-queries", "top left"),
    Question("mask of shape (1, 1, 1, Sk)", "mask-broadcast-k", "ok"),
    Question("mask of shape (1, 1, 1, 1)", "mask-broadcast-one", "ok"),
    Question("mask of rank 1", "mask-broadcast-rank1", "ok"),
    Question("mask of one row with is_causal", "combined-key-mask-causal", "both hold"),
    Question("mask of rank 1 with is_causal", "combined-rank1-mask-causal", "both hold"),
    # Scale, softcap and sinks.
    Question("scale < 0", "scale-negative", "ok"),
    Question("scale < 0 with is_causal", "scale-negative-causal", "ok"),
    Question("scale = 0", "scale-zero", "mean of v"),
    Question("scale = 0 with is_causal", "scale-zero-causal", "ok"),
    Question("scale < 0 with softcap", "softcap-negative-scale", "ok"),
    Question("eight keys, half of a block of 16", "keys-8", "ok"),
    Question("sinks", "sinks", "ok"),
    Question("sink of a fully masked row", "sinks-empty-row", "zeros"),
    # Shapes.
    Question("Sk = 0", "empty-keys", "zeros"),
    Question("Sk = 0 with grouped heads", "empty-keys-grouped", "zeros"),
    Question("Sk = 0, lse requested", "empty-keys-lse", "−inf"),
    Question("Sq = 0", "empty-queries", "empty"),
    Question("Dv = 0", "empty-values", "empty"),
    Question("D = 0", "empty-width", "mean of v"),
    Question("Dv ≠ D", "value-width-larger", "ok"),
    # NaN and overflow.
    Question("NaN in a query row", "nan-query", "NaN"),
    Question("NaN in a query row with is_causal", "nan-query-causal", "NaN"),
    Question("NaN in a masked value", "masked-nan-values", "kept out"),
    Question("overflow of a masked score", "masked-largest-values", "kept out"),
    # Decoding.
    Question("decoding, one query and one new key", "decode-one", "ok"),
    Question("decoding, is_causal, one query over two new keys", "decode-fewer-queries", "at the first"),
    Question("decoding, a past and no new key", "decode-no-new-key", "sees the past"),
    # What is refused.
    Question("k and v of unequal length", "invalid-lengths", "refused"),
    Question("heads not divisible", "invalid-heads", "refused"),
    Question("k and v of unequal numbers of heads", "invalid-heads-values", "refused"),
    Question("q, k and v of unequal rank", "invalid-ranks", "refused"),
    Question("q, k and v of unequal dtype", "invalid-dtypes", "refused"),
    Question("mask over too few keys", "invalid-mask-keys", "refused"),
    Question("mask of rank 5", "invalid-mask-rank5", "refused"),
    Question("decoding, a past of another dtype", "decode-invalid-dtype", "refused"),
    Question("scale = 0 with a past", "decode-scale-zero", "ok"),
    # Gradients of attention.
    Question("fully masked row, boolean mask", "grad-empty-row", "zeros"),
    Question("fully masked row, bias of −inf", "grad-empty-row-bias", "zeros"),
    Question("is_causal, Sq < Sk", "grad-causal-more-keys", "top left"),
    Question("scale < 0", "grad-scale-negative", "ok"),
    Question("bias of shape (1, 1, Sq, Sk)", "grad-bias-qk", "summed"),
    Question("Sk = 0", "grad-empty-keys", "zeros"),
    # The layer.
    Question("fully masked row, boolean mask", "mha-empty-row", "b_o"),
    Question("fully masked row, weights requested", "mha-weights-mask", "b_o"),
    Question("fully masked row, bias of −inf", "mha-bias-minus-inf", "b_o"),
    Question("sample of length 0", "mha-empty-batch", "b_o"),
    Question("padded keys", "mha-lengths", "ok"),
    Question("is_causal, Sq < Sk", "mha-causal-cross", "top left"),
    Question("mask together with is_causal", "mha-causal-mask", "both hold"),
    Question("no biases", "mha-no-bias", "ok"),
    Question("scale = 0", "mha-scale-zero", "ok"),
    Question("Sk = 0", "mha-no-keys", "b_o"),
    # Gradients of the layer.
    Question("fully masked row, boolean mask", "mha-grad-empty-row", "b_o alone"),
    Question("fully masked row, bias of −inf", "mha-grad-bias-minus-inf", "b_o alone"),
    Question("sample of length 0", "mha-grad-empty-batch", "b_o alone"),
    Question("Sk = 0", "mha-grad-no-keys", "b_o alone"),
    # Merging of partial results.
    Question("no key in any part", "merge-empty-all-row", "0 and −inf"),
    Question("no key in the first part", "merge-empty-first", "ok"),
    Question("junk in the output of a part without a key", "merge-empty-junk", "kept out"),
    Question("NaN in the output of a part without a key", "merge-empty-nan", "kept out"),
    Question("NaN as a log-sum-exp", "merge-nan-lse", "NaN"),
    Question("log-sum-exps of fewer heads", "merge-invalid-heads", "refused"),
    # Packed sequences and paged caches.
    Question("a sequence without keys", "varlen-empty-keys", "zeros"),
    Question("no sequence has a key", "varlen-empty-all", "zeros"),
    Question("causal with more queries than keys", "varlen-causal-more-queries", "bottom right"),
    Question("keys behind the last sequence", "varlen-behind", "no part"),
    Question("NaN in another sequence", "varlen-nan-neighbour", "kept out"),
    Question("gaps between the elements of packs", "varlen-memory-sliced", "ok"),
    Question("numbers in unused slots", "paged-slots", "no part"),
    Question("NaN in unused slots", "paged-slots-nan", "kept out"),
    Question("−1 behind the pages of a table", "paged-padding", "no part"),
    # Block masks, trees and latent attention.
    Question("rows without a block", "block-empty-first", "zeros"),
    Question("a mask inside of a block that is True", "block-mask", "both count"),
    Question("keys behind a tree of draft tokens", "tree-behind", "no part"),
    Question("causal beside a tree", "tree-causal", "both count"),
    Question("the default scale over latents of 512", "latent-deepseek", "1/√192"),
    Question("no latent in use", "latent-lengths-zero", "zeros"),
)
