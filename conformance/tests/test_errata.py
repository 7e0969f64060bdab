"""Every row of the errata table of SPEC.md: the published value is rejected and the right one accepted.

The numbers are taken from the table itself, so that table and tests cannot drift apart.  Projections, head
splitting and the articles' own mistakes are written in plain NumPy; attention is the reference's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from attention_conformance.conformance.spec import sdpa as reference
from attention_conformance.conformance.spec.clauses import SPEC
from attention_conformance.conformance.tests.hand_examples import examples

Array = np.ndarray


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    source: str
    published: str
    right: str
    why: str
    clause: str


def _table(text: str) -> list[Row]:
    """The rows of the errata table, without its title row and the line below it."""
    _, _, section = text.partition("## Errata of published examples")
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [Row(*(cell.strip() for cell in line.strip("|").split("|"))) for line in lines[2:]]


ROWS = _table(SPEC.read_text(encoding="utf-8"))
TESTED: Counter[Row] = Counter()


def erratum(source: str, published: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator that gives a test the one row with this source whose published value starts with this text."""
    (row,) = [row for row in ROWS if row.source == source and row.published.startswith(published)]
    TESTED[row] += 1
    return pytest.mark.parametrize("row", [row], ids=[row.published])


def _vectors(text: str) -> list[tuple[float, ...]]:
    """The vectors (a, b, …) of numbers in a cell."""
    found = re.findall(r"\(((?:-?[\d.]+, ?)+-?[\d.]+)\)", text)
    return [tuple(float(number) for number in vector.split(",")) for vector in found]


def _last_number(text: str) -> float:
    return float(re.findall(r"\d+\.\d+", text)[-1])


def _is(computed: Array | float, printed: Array | tuple[float, ...] | float, digits: int = 1) -> bool:
    """Whether a result equals the printed one to half a unit in the last printed digit."""
    a, b = np.asarray(computed), np.asarray(printed)
    return a.shape == b.shape and bool(np.all(np.abs(a - b) <= 0.5 * 10.0**-digits * (1 + 1e-9)))


# ------------------------------------------------------------------------------------------------ source 001

X = np.array([1.0, 2.0, 3.0])


def _weight(first: float, columns: int = 2) -> Array:
    """The article's matrices: three rows of numbers that count up in steps of 0.1."""
    return first + 0.1 * np.arange(3 * columns).reshape(3, columns)


Q1, K1, V1, Q2, K2, V2 = (X @ _weight(first) for first in (0.1, 0.7, 1.3, 1.9, 2.5, 3.1))
#: W^O as the article prints it.
PRINTED_OUT = np.array([[3.7, 3.8, 3.9, 4.0], [4.1, 4.2, 4.3, 4.4], [4.5, 4.6, 4.7, 4.8]])


def _head(q: Array, k: Array, v: Array) -> Array:
    """Attention of one query over one key."""
    output: Array = reference.sdpa(*(array.reshape(1, 1, 1, -1) for array in (q, k, v))).output
    return output.ravel()


@erratum("001 §4.1", "q=")
def test_score_of_section_4_1(row: Row) -> None:
    """q·k = 0.32, so the scaled score is 0.32/√3."""
    q, k = _vectors(row.published)
    score = reference.sdpa(*(np.reshape(array, (1, 1, 1, 3)) for array in (q, k, k))).lse.item()
    assert _is(score, _last_number(row.right), digits=6)
    assert not _is(score, _last_number(row.published), digits=4)
    assert _is(0.45 / np.sqrt(3), _last_number(row.published), digits=4)  # origin of the printed number


def _check_vectors(row: Row, *computed: Array) -> None:
    """Check that the row's right vectors are the computed ones, in order, and that no published one is."""
    right, published = _vectors(row.right), _vectors(row.published)
    assert published
    assert len(right) == len(computed)
    for vector, result in zip(right, computed, strict=True):
        assert _is(result, vector)
        assert all(len(wrong) == result.size and not _is(result, wrong) for wrong in published)


def test_a_row_that_says_what_the_article_says_is_no_erratum() -> None:
    """The check of vectors rejects the published value instead of the right one, and a row without a vector."""
    row = next(row for row in ROWS if row.published.startswith("Q1 = "))
    _check_vectors(row, Q1)
    for wrong in (replace(row, right=row.published), replace(row, published=row.right), replace(row, published="Q1")):
        with pytest.raises(AssertionError):
            _check_vectors(wrong, Q1)


@erratum("001 §4.2", "Q1 = ")
def test_q1_of_section_4_2(row: Row) -> None:
    """Q1 is x times its matrix."""
    _check_vectors(row, Q1)


@erratum("001 §4.2", "K1 = ")
def test_k1_of_section_4_2(row: Row) -> None:
    """K1 is x times its matrix."""
    _check_vectors(row, K1)


@erratum("001 §4.2", "V1 = ")
def test_head1_of_section_4_2(row: Row) -> None:
    """With one key the head is its value, so head 1 is V1."""
    _check_vectors(row, V1)
    _check_vectors(row, _head(Q1, K1, V1))


@erratum("001 §4.2", "Q2 = ")
def test_q2_and_k2_of_section_4_2(row: Row) -> None:
    """Q2 and K2 are x times their matrices."""
    _check_vectors(row, Q2, K2)


@erratum("001 §4.2", "V2 = ")
def test_head2_of_section_4_2(row: Row) -> None:
    """With one key the head is its value, so head 2 is V2."""
    _check_vectors(row, V2)
    _check_vectors(row, _head(Q2, K2, V2))


@erratum("001 §4.2", "W^O printed as 3×4")
def test_output_of_section_4_2(row: Row) -> None:
    """The concatenated heads (4) fit only the transpose of the printed matrix, and give another vector."""
    heads = np.concatenate([_head(Q1, K1, V1), _head(Q2, K2, V2)])
    with pytest.raises(ValueError, match="mismatch"):
        heads @ PRINTED_OUT
    (right,), (published,) = _vectors(row.right), _vectors(row.published)
    assert _is(heads @ PRINTED_OUT.T, right, digits=2)
    assert not _is(heads @ PRINTED_OUT.T, published)
    wrong_heads = np.array([11.8, 13.2, 20.9, 21.5])
    assert not _is(wrong_heads @ PRINTED_OUT.T, published)  # not even from the article's own heads


# ------------------------------------------------------------------------------- sources 000, 002, 004: code


def _split(x: Array, heads: int) -> Array:
    """(B, S, H · D) to (B, H, S, D)."""
    batch, length, width = x.shape
    return x.reshape(batch, length, heads, width // heads).transpose(0, 2, 1, 3)


def _combine(x: Array) -> Array:
    """(B, H, S, D) to (B, S, H · D)."""
    batch, heads, length, width = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, length, heads * width)


def _self_attention(x: Array, heads: int, scale: float | None = None) -> Array:
    """Multi-head self-attention of x (B, S, H · D) with identity projections."""
    q = _split(x, heads)
    return _combine(reference.sdpa(q, q, q, scale=scale).output)


def _softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights: Array = powers / powers.sum(axis=-1, keepdims=True)
    return weights


def _random(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).normal(size=shape)


@erratum("002 multi-head", "scale 1/√dim")
def test_scale_of_source_002(row: Row) -> None:
    """1/√(model width) gives the numbers of one head for two heads."""
    one, two = (next(e for e in examples() if e.name == f"source_002_{n}") for n in ("one_head", "two_heads"))
    x = one.q[0]  # (1, 6, 4)
    with_width_of_head = _self_attention(x, 2)
    with_width_of_model = _self_attention(x, 2, scale=1 / np.sqrt(4))
    assert _is(with_width_of_head[0, :, 0], two.results["output"].values[0, 0, :, 0], digits=6)
    assert _is(with_width_of_model[0, :, 0], one.results["output"].values[0, 0, :, 0], digits=6)
    assert not _is(with_width_of_model, with_width_of_head, digits=1)
    assert _is(_self_attention(x, 1), _self_attention(x, 1, scale=1 / np.sqrt(4)), digits=12)


def _source_002_rank_3(x: Array) -> Array:
    """The article's single-head layer on x (B, S, D), its axes as published; the result as (S, B, D)."""
    q = x.transpose(1, 0, 2)  # (S, B, D)
    kt = q.transpose(1, 2, 0)  # (B, D, S)
    v = q.transpose(1, 0, 2)  # (B, S, D)
    return _softmax(q @ kt / np.sqrt(x.shape[2])) @ v


@erratum("002 rank 3", "`k` permuted")
def test_axes_of_source_002(row: Row) -> None:
    """Contracting (S, B, D) with (B, D, S) is right for one batch, wrong for two, and an error where B ≠ S."""
    one, two, three = _random(1, 3, 4), _random(2, 2, 4), _random(2, 3, 4)
    assert _is(_source_002_rank_3(one).transpose(1, 0, 2), _self_attention(one, 1), digits=12)
    assert not _is(_source_002_rank_3(two).transpose(1, 0, 2), _self_attention(two, 1), digits=1)
    with pytest.raises(ValueError, match=r"mismatch|broadcast"):
        _source_002_rank_3(three)


def _source_002_heads(x: Array, heads: int) -> Array:
    """The article's multi-head layer on x (B, S, D), but with the right scale; the result as (S, B, D)."""
    q = _split(x, heads)
    out = reference.sdpa(q, q, q).output  # (B, H, S, Dk)
    return out.swapaxes(1, 2).reshape(x.shape[1], x.shape[0], x.shape[2])


@erratum("002 multi-head rank 3", "combines heads by")
def test_combination_of_source_002(row: Row) -> None:
    """A view of (B, S, H, Dk) as (S, B, D) is right for one batch and scrambles two; the sequence axis goes first."""
    one, two = _random(1, 3, 4), _random(2, 3, 4)
    assert _is(_source_002_heads(one, 2).swapaxes(0, 1), _self_attention(one, 2), digits=12)
    assert not _is(_source_002_heads(two, 2).swapaxes(0, 1), _self_attention(two, 2), digits=1)
    q = _split(two, 2)
    sequence_first = reference.sdpa(q, q, q).output.transpose(2, 0, 1, 3).reshape(3, 2, 4)
    assert _is(sequence_first.swapaxes(0, 1), _self_attention(two, 2), digits=12)


@pytest.mark.parametrize("fill", [-1e9, -1e20])
@erratum("001, 004", "masked scores filled")
def test_finite_fill(row: Row, fill: float) -> None:
    """With a finite fill a fully masked row is the mean of the values; the spec requires zeros."""
    q, k, v = _random(1, 1, 2, 4), _random(1, 1, 3, 4), _random(1, 1, 3, 5)
    mask = np.array([[False, False, False], [True, False, True]])
    filled = _softmax(np.where(mask, q @ k.swapaxes(2, 3) / 2, fill)) @ v
    right = reference.sdpa(q, k, v, mask=mask).output
    assert _is(filled[0, 0, 0], v[0, 0].mean(axis=0), digits=12)
    assert np.array_equal(right[0, 0, 0], np.zeros(5))
    assert _is(right[0, 0, 1], filled[0, 0, 1], digits=12)  # a row with a key hides the mistake


@erratum("001, 004", "masked scores filled")
def test_finite_fill_in_float16(row: Row) -> None:
    """Neither fill is a number of float16: both become −inf there, and a fully masked row becomes NaN."""
    with np.errstate(over="ignore", invalid="ignore"):
        for fill in (-1e9, -1e20):
            assert np.isneginf(np.float16(fill))
            assert np.isnan(_softmax(np.full(3, fill, np.float16))).all()


@erratum("004", "scale 1/√embed_size")
def test_scale_of_source_004(row: Row) -> None:
    """1/√embed_size is 1/√(head width) for the article's one head, and wrong for two."""
    x = _random(2, 10, 32)
    assert _is(_self_attention(x, 1, scale=1 / np.sqrt(32)), _self_attention(x, 1), digits=12)
    assert not _is(_self_attention(x, 2, scale=1 / np.sqrt(32)), _self_attention(x, 2), digits=1)


def _layer_norm(x: Array) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    normalised: Array = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True))
    return normalised


@erratum("001, 000", "residual and normalisation")
def test_residual_and_normalisation(row: Row) -> None:
    """The layer alone neither normalises nor keeps x; the sub-layer LayerNorm(x + MHA(x)) does both."""
    x = _random(2, 3, 4)
    out = np.zeros((4, 4))  # an output projection of zeros: the layer adds nothing
    layer = _self_attention(x, 2) @ out
    assert np.array_equal(layer, np.zeros_like(x))
    assert _is(_layer_norm(x + layer), _layer_norm(x), digits=12)
    sublayer = _layer_norm(x + _self_attention(x, 2))
    assert _is(sublayer.mean(axis=-1), np.zeros((2, 3)), digits=12)
    assert _is((sublayer**2).mean(axis=-1), np.ones((2, 3)), digits=12)
    assert not _is(_self_attention(x, 2), sublayer, digits=1)


# ------------------------------------------------------------------------------------------------- the table


def test_every_row_has_a_test() -> None:
    """Each row of the errata table has its own test here, and the table was found."""
    assert len(ROWS) >= 13
    assert [row for row in ROWS if not TESTED[row]] == []


def test_a_new_row_would_be_noticed() -> None:
    """A row that is added to the table without a test is reported."""
    text = SPEC.read_text(encoding="utf-8") + "\n| 005 | something | else | because | SDPA-1 |\n"
    assert [row.source for row in _table(text) if not TESTED[row]] == ["005"]
