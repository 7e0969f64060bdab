"""Further forms and parts: padding that counts, causal rows in groups, lengths of rows, and uninitialised output."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attention_conformance.conformance.cases import case_named, every_case
from attention_conformance.conformance.diagnosis.explanation import Passed
from attention_conformance.conformance.diagnosis.fitted import fitted
from attention_conformance.conformance.diagnosis.forms import forms_of
from attention_conformance.conformance.diagnosis.match import diagnose
from attention_conformance.conformance.diagnosis.unnamed import region, unwritten
from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs, Model
from attention_conformance.conformance.faults.models.tiles import State, Tiled
from attention_conformance.conformance.faults.sdpa.online_softmax import OutputNotRescaled, TotalNotRescaled
from attention_conformance.conformance.faults.sdpa.sinks import SinkCountsPerTile
from attention_conformance.conformance.faults.trials import Failed, explains, trial
from attention_conformance.conformance.spec.sdpa import Expected
from attention_conformance.conformance.tests.test_diagnosis_choice import PROFILE, sorted_out
from attention_conformance.impls.contract import Profile

PLAIN = ("plain", "plain-square", "plain-tall", "width-6", "one-query", "scale-given", "invalid-lengths")
CAUSAL = ("plain", "causal-square", "causal-more-keys", "causal-more-queries", "causal-one-query")
LENGTHS = ("plain", "lengths", "lengths-zero", "lengths-full")
SINKS = (
    *("plain", "sinks", "sinks-tiles", "sinks-long"),
    *(f"kernel-decode-sinks-1x1x1-{sizes}-float32" for sizes in ("q1-k129-d64", "q1-k1024-d64", "q2-k513-d96")),
)
TILES = (
    *("plain", "tiles", "tiles-ascending", "keys-65-peak-last", "keys-128-peak-last", "keys-129-peak-last"),
    *("keys-257-peak-last", "long-causal", "long"),
)
OFFSETS = ("offset-bottom-right", "offset-tiles", "offset-tiles-negative", "offset-long", "decode-tiles", "decode-long")
EMPTY = ("plain", "mask", "empty-row", "empty-row-one-batch", "empty-row-last", "empty-row-grouped", "invalid-lengths")


class ZeroKeys(Attention):
    """Keys of zeros pad to a multiple of 4 and are not masked."""

    def attend(self, x: Inputs) -> Expected:
        """All results."""
        missing = ((0, 0), (0, 0), (0, -x.k.shape[2] % 4), (0, 0))
        return super().attend(replace(x, k=np.pad(x.k, missing), v=np.pad(x.v, missing)))


class CausalByTwo(Attention):
    """Two rows share one causal mask."""

    def causal_allows(self, x: Inputs) -> Array:
        """The causal mask of the second row of each pair."""
        rows = np.arange(x.q.shape[2])[:, None] // 2 * 2 + 1
        return self.keys(x) <= rows if x.is_causal else super().causal_allows(x)


class LengthsOfRows(Attention):
    """Key lengths applied to the rows."""

    def lengths_allow(self, x: Inputs) -> Array:
        """A mask of whole rows."""
        if x.kv_lengths is None:
            return super().lengths_allow(x)
        rows = np.arange(x.q.shape[2])[:, None] < np.reshape(x.kv_lengths, (-1, 1, 1, 1))
        return np.broadcast_to(rows, x.shape)


class SinkPerTile(SinkCountsPerTile):
    """Every tile of 128 keys adds the sink to the sum, as ejkernel 0.0.80 does."""

    tile = 128


class LastHeadUnwritten(Attention):
    """The last of several heads is uninitialised memory."""

    def stored(self, x: Inputs, output: Array) -> Array:
        """The output as it is returned."""
        output = super().stored(x, output)
        if output.shape[1] > 1:
            noise = np.random.default_rng(output.size).standard_normal(output[:, -1].shape)
            output[:, -1] = noise.astype(output.dtype)
        return output


class MaskedRowsUnwritten(Attention):
    """Rows that may attend to no key are uninitialised memory."""

    def stored(self, x: Inputs, output: Array) -> Array:
        """The output as it is returned."""
        output = super().stored(x, output)
        noise = np.random.default_rng(np.count_nonzero(self.allowed(x))).standard_normal(output.shape)
        return np.where(self.allowed(x).any(axis=3, keepdims=True), output, noise.astype(output.dtype))


class GuardedWeights(Attention):
    """No weight is below a thousandth."""

    def normalized(self, x: Inputs, powers: Array, total: Array, allowed: Array) -> Array:
        """The weights."""
        weights = super().normalized(x, powers, total, allowed)
        return np.where(weights < 1e-3, x.work(1e-3), weights)


class WidthInTwo(Attention):
    """Both halves of the width of 8 act as keys, and their powers are added."""

    def scores(self, x: Inputs, q: Array, k: Array) -> Array:
        """Scores whose power is the sum of both halves' powers."""
        halves = (super(WidthInTwo, self).scores(x, q[..., half], k[..., half]) for half in np.s_[:4, 4:])
        return np.asarray(np.log(sum(np.exp(each) for each in halves)))


class AddedInFloat64(Attention):
    """−1e4 is added to masked scores in float64, so that their other digits survive."""

    def filled(self, x: Inputs, s: Array, allowed: Array) -> Array:
        """Scores as they go into the softmax."""
        return np.where(allowed, s, s.astype(np.float64) - 1e4)


class Hardmax(Attention):
    """All weight is on the key with the largest score."""

    def normalized(self, x: Inputs, powers: Array, total: Array, allowed: Array) -> Array:
        """The weights."""
        largest = (powers == powers.max(axis=3, keepdims=True, initial=0)) & allowed
        return (largest / np.maximum(largest.sum(axis=3, keepdims=True), 1)).astype(powers.dtype)


class CausalAtTheBottomRight(Attention):
    """Every call is causal."""

    def lengths_allow(self, x: Inputs) -> Array:
        """The lengths, and causal from the bottom right."""
        rows = np.arange(x.shape[2])[:, None] + x.shape[3] - x.shape[2]
        return super().lengths_allow(x) & (self.keys(x) <= rows)


class OneNumberWrong(Attention):
    """One number of the last head is wrong, which is not a whole part."""

    def stored(self, x: Inputs, output: Array) -> Array:
        """The output as it is returned."""
        output = super().stored(x, output)
        output[-1, -1, -1, -1] += 1
        return output


@pytest.mark.slow(2)
@pytest.mark.parametrize(
    ("make", "names", "words"),
    [
        (ZeroKeys, PLAIN, "up to a multiple of 4 keys, counts as keys of score 0"),
        (CausalByTwo, CAUSAL, "one causal mask for every 2 rows, that of the last one"),
        (LengthsOfRows, LENGTHS, "key lengths applied to the rows"),
        (LastHeadUnwritten, PLAIN, "the last head holds numbers that no mistake gives"),
        (GuardedWeights, PLAIN, "weights below 1e−3 raised to it"),
        (WidthInTwo, PLAIN, "slices of the head width, 4 columns each"),
        (MaskedRowsUnwritten, EMPTY, "fully masked rows hold numbers that no mistake gives"),
        (Hardmax, (*PLAIN, *CAUSAL), "all weight is on the key with the largest score"),
        (CausalAtTheBottomRight, PLAIN, "every call is causal, aligned bottom-right"),
    ],
)
def test_a_cause_is_named(make: type[Model], names: tuple[str, ...], words: str) -> None:
    """The diagnosis names the cause first."""
    failed, passed = sorted_out(make, [every_case()[name] for name in names if name in every_case()])
    assert words in diagnose(failed, passed, pairs=False)[0].title


def test_a_part_that_is_wrong_here_and_there_is_not_called_unwritten() -> None:
    """A part is called uninitialised only if most of it is wrong and no passed call has such a part."""
    cases = [every_case()[name] for name in PLAIN if name in every_case()]
    failed, passed = sorted_out(OneNumberWrong, cases)
    assert failed
    assert unwritten(failed, passed) == []
    failed, _ = sorted_out(LastHeadUnwritten, cases)
    assert len(unwritten(failed, [])) == 1
    _, passed = sorted_out(Attention, cases)
    assert unwritten(failed, [*passed, *passed]) == []


def test_a_saturated_softmax_has_no_factor() -> None:
    """A factor is not fitted to a saturated softmax, where twice the factor gives the same, but to others it is."""
    cases = [every_case()[name] for name in (*PLAIN, *CAUSAL) if name in every_case()]
    failed, passed = sorted_out(Hardmax, cases)
    (found,) = diagnose(failed, passed, pairs=False)
    assert found.names == ("form-weights",)
    members = {"default_scale": lambda self, x: 7.3 / x.q.shape[3] ** 0.5}
    failed, passed = sorted_out(type("Sharp", (Attention,), members), cases)
    assert diagnose(failed, passed, pairs=False)[0].names == ("fitted-scale",)


@pytest.mark.parametrize("words", ["the mean of v", "NaN"])
def test_rows_before_the_first_key_are_right_beside_a_sink(words: str) -> None:
    """Next to a sink, which is a score, the form is only causal from the bottom right, without wrong masked rows."""
    (form,) = (f.make for f in forms_of("sdpa") if f.name == "form-bottom-right" and f", and {words} in" in f.title)
    q, k, v = np.random.default_rng(3).standard_normal((3, 1, 2, 5, 4)).astype(np.float32)
    k, v = k[:, :, :3], v[:, :, :3]
    sinks, mask = np.zeros(2, np.float32), np.tri(5, 3, -2, dtype=bool)
    assert np.array_equal(form()(q, k, v, sinks=sinks, is_causal=True), Attention()(q, k, v, sinks=sinks, mask=mask))


def test_one_number_added_to_all_scores_of_a_row_has_a_form() -> None:
    """The form gives the results of adding a number in a wider dtype, and not those of uninitialised rows."""
    (form,) = (form for form in forms_of("sdpa") if form.name == "form-empty-row")
    cases = [every_case()[name] for name in EMPTY]
    added, unwritten_rows = (sorted_out(make, cases)[0] for make in (AddedInFloat64, MaskedRowsUnwritten))
    assert len(added) > 3
    assert all(explains(form.make, failed) for failed in added)
    assert not any(explains(form.make, failed) for failed in unwritten_rows)


def test_a_sink_that_counts_once_per_chunk_has_the_size_of_the_chunk() -> None:
    """The number of keys of a chunk is found, and no other size explains the failures."""
    cases = [case_named(name) for name in SINKS]
    failed, passed = sorted_out(SinkPerTile, cases)
    assert len(failed) > 2
    found = diagnose(failed, passed, pairs=False)
    assert [each.title for each in found] == ["“a sink counts once for each 128 keys”"]
    forms = [form for form in forms_of("sdpa") if form.name == "form-sink"]
    explained = [form.title for form in forms if all(explains(form.make, each) for each in failed)]
    assert explained == ["a sink counts once for each 128 keys"]


class OrderExchanged(Tiled):
    """A loop over tiles of 64 keys that adds a tile to the output before it rescales it."""

    tile = 64

    def merged(self, x: Inputs, index: int, s: Array, v: Array, state: State) -> State:
        """The running state."""
        top, total, _ = super().merged(x, index, s, v, state)
        base = np.where(np.isneginf(top), x.work(0), top)
        return top, total, (state[2] + np.exp(s - base) @ v) * np.exp(state[0] - base)


class TilesCountedFromZero(Attention):
    """Causal over tiles of 32 rows stops at the last row of the tile, without the offset."""

    def causal_allows(self, x: Inputs) -> Array:
        """Keys that are visited, and that are not masked."""
        visited = (np.arange(x.shape[2])[:, None] // 32 + 1) * 32
        return super().causal_allows(x) & ((self.keys(x) < visited) | (not x.is_causal))


@pytest.mark.slow(2)
@pytest.mark.parametrize("keys", [32, 64, 128])
@pytest.mark.parametrize(
    ("make", "title"),
    [
        (OutputNotRescaled, "the running output is not rescaled when the maximum rises"),
        (TotalNotRescaled, "the running sum is not rescaled when the maximum rises"),
    ],
)
def test_a_mistake_of_tiles_has_their_size(make: type[Tiled], title: str, keys: int) -> None:
    """All failures of an online softmax are named with the size of its tiles, and no other size explains them."""
    failed, passed = sorted_out(type("Kernel", (make,), {"tile": keys}), [case_named(name) for name in TILES])
    (found,) = diagnose(failed, passed, pairs=False)
    assert found.title == f"“{title}, with tiles of {keys} keys”"
    assert found.fits == frozenset(failed)
    same = [form.title for form in forms_of("sdpa") if form.title.startswith(title)]
    assert len(same) == 4
    forms = [form for form in forms_of("sdpa") if form.title in same]
    explained = [form.title for form in forms if all(explains(form.make, each) for each in failed)]
    assert explained == [f"{title}, with tiles of {keys} keys"]


@pytest.mark.parametrize(
    ("make", "names", "words"),
    [
        (OrderExchanged, TILES, "the running output is rescaled after the tile is added, with tiles of 64 keys"),
        (
            TilesCountedFromZero,
            ("plain", *OFFSETS),
            "the last tile of keys of a causal row is counted without the offset, with tiles of 32 rows",
        ),
    ],
)
def test_another_mistake_of_tiles_is_named(make: type[Model], names: tuple[str, ...], words: str) -> None:
    """The order of rescaling, and the end of a loop over tiles, have forms with the size of the tiles."""
    failed, passed = sorted_out(make, [case_named(name) for name in names])
    assert failed
    assert [each.title for each in diagnose(failed, passed, pairs=False)] == [f"“{words}”"]


class SinksInBaseTwo(Attention):
    """A softmax of powers of 2 whose scores are converted, and whose sinks are not."""

    def sinks(self, x: Inputs) -> Array:
        """The sinks, as powers of e."""
        return super().sinks(x) * x.work(np.log(2))


def test_a_factor_of_the_sinks_is_solved_for() -> None:
    """Sinks in the wrong base are named by their factor, in all failures."""
    names = ("plain", "sinks", "sinks-large", "sinks-grouped", "sinks-mask", "sinks-lse", "sinks-zero")
    failed, passed = sorted_out(SinksInBaseTwo, [case_named(name) for name in names])
    (found,) = diagnose(failed, passed, pairs=False)
    assert found.title == "“the sinks are 0.69315 (ln 2) times the given ones”"
    assert found.fits == frozenset(failed)


class CausalZeros(Attention):
    """Causal calls return a fresh output."""

    def stored(self, x: Inputs, output: Array) -> Array:
        """The output as it is returned."""
        return super().stored(x, output * (0 if x.is_causal else 1))


def test_zeros_are_called_zeros() -> None:
    """Zeros are not called a sink or a guard, which give zeros only where they are too large to be known."""
    failed, passed = sorted_out(CausalZeros, [case_named(name) for name in CAUSAL])
    (found,) = diagnose(failed, passed, pairs=False)
    assert found.title == "“the output is zeros”, only with is_causal"
    assert {fault.name for fault in fitted(failed, tables=False)}.isdisjoint({"fitted-sink", "fitted-guard"})


class BareExp(Attention):
    """exp of the scores themselves, divided by a sum that is guarded."""

    def top(self, x: Inputs, s: Array) -> Array:
        """Nothing is taken off."""
        return np.zeros((*x.shape[:3], 1), x.work)


def test_exp_without_the_maximum_may_have_a_guard() -> None:
    """Rows of zeros, where the powers underflow, are named as such, and not by two mistakes."""
    names = ("plain", "softmax-one-hot", "softmax-shift-plus-1e5", "softmax-shift-minus-1e5", "softmax-shift-tiles")
    failed, passed = sorted_out(BareExp, [case_named(name) for name in names])
    (found,) = diagnose(failed, passed)
    assert found.title == "“the maximum is not taken off before exp, and a row whose powers are all 0 gives zeros”"
    assert found.fits == frozenset(failed)


class UpperBits(Attention):
    """The upper 16 bits of float32 are stored as bfloat16."""

    def stored(self, x: Inputs, output: Array) -> Array:
        """The output as it is returned."""
        return (output.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(x.dtype)


class RoundedWeights(Attention):
    """The weights are rounded to bfloat16 before the product with the values."""

    def summed(self, x: Inputs, weights: Array, allowed: Array, v: Array) -> Array:
        """The output."""
        return super().summed(x, weights.astype(x.dtype).astype(x.work), allowed, v)


def in_bfloat16(make: type[Model]) -> list[str]:
    """The titles of the diagnosis of the plain calls in bfloat16 that fail in the profile wide."""
    failed, passed = [], []
    for case in (case_named(name) for name in PLAIN if "bfloat16" in case_named(name).dtypes):
        found = trial(make, case, "bfloat16", Profile.WIDE)
        if found.verdict.failure is None:
            passed.append(Passed(case, "bfloat16", Profile.WIDE))
        else:
            failed.append(Failed(case, "bfloat16", Profile.WIDE, found.verdict.failure, found.reply))
    assert failed
    return [each.title for each in diagnose(failed, passed, pairs=False)]


def test_truncation_is_not_a_factor() -> None:
    """An output whose lower bits are cut is named so, and not by a factor near 1; other rounding is not."""
    title = "“results in half precision are truncated, not rounded”"
    assert in_bfloat16(UpperBits) == [title]
    assert title not in in_bfloat16(RoundedWeights)


def test_a_region_is_a_part_of_an_output() -> None:
    """A part of an output is selected by its words."""
    assert np.argwhere(region("the last row holds", (1, 1, 3, 1)))[:, 2].tolist() == [2]
    assert np.argwhere(region("rows behind the last whole tile of 4 hold", (1, 1, 6, 1)))[:, 2].tolist() == [4, 5]
    assert not region("the last row holds", (5,)).any()


class SinkOfZeros(Attention):
    """All weight on a missing key: zeros, with an infinite bound of their own."""

    def sinks(self, x: Inputs) -> Array:
        """A sink far above every score."""
        return np.full(x.q.shape[1], 1e5, x.work)


def test_an_infinite_bound_of_a_mistake_is_no_agreement() -> None:
    """A result that is right in one sample and zero in the other does not count as the zeros of a mistake."""
    case = every_case()["plain"]
    failed, _ = sorted_out(SinkOfZeros, [case])
    output = case.expected("float32").output.astype(np.float32)
    output[1:] = 0
    reply = replace(failed[0].reply, results={"output": output})
    assert not explains(SinkOfZeros, Failed(case, "float32", PROFILE, failed[0].failure, reply))
    assert explains(SinkOfZeros, failed[0])


class OldestDropped(Attention):
    """A ring buffer of the cache that is one slot too short."""

    def joined(self, x: Inputs) -> Inputs:
        """Keys and values without the first past ones, which still count."""
        if x.past_key is None or x.past_value is None:
            return x
        joined = super().joined(x)
        return replace(joined, k=joined.k[:, :, 1:], v=joined.v[:, :, 1:])


class OtherBeams(Attention):
    """The past of another sample, as after a beam search that did not reorder its cache."""

    def joined(self, x: Inputs) -> Inputs:
        """Past keys and values with batches in reverse."""
        if x.past_key is None or x.past_value is None:
            return x
        return super().joined(replace(x, past_key=x.past_key[::-1], past_value=x.past_value[::-1]))


@pytest.mark.slow(2)
@pytest.mark.parametrize(
    ("make", "title"),
    [
        (OldestDropped, "past keys and values lack the first one"),
        (OtherBeams, "past keys and values are those of the batches in reverse"),
    ],
)
def test_another_past_is_named(make: type[Model], title: str) -> None:
    """A wrong past is named by its form, though other mistakes return presents of that shape."""
    cases = ("plain", "decode-one", "decode-several", "decode-grouped", "decode-mask", "decode-not-causal")
    (best,) = diagnose(*sorted_out(make, [every_case()[name] for name in cases]), pairs=False)
    assert best.title.partition(", only")[0] == f"“{title}”"
