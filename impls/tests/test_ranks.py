"""Ranks: a call over several processes or devices is one call; a failure of one rank is reported with its number."""

from __future__ import annotations

import os
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_conformance.impls.calls import Request, call
from attention_conformance.impls.contract import Framework, Implementation, ImplementationError
from attention_conformance.impls.loading import attributes_of, keywords, load
from attention_conformance.impls.operators import SDPA
from attention_conformance.impls.process.pool import TimedOut
from attention_conformance.impls.ranks import Group
from attention_conformance.impls.select import plug_in, with_attributes
from attention_conformance.impls.sharding import SHARDINGS, Distribution, parts

FUNCTIONS = "attention_conformance.impls.tests.rank_functions"

#: A ring in JAX: keys and values are passed on, and states merged.
JAX_RING = """
import jax.numpy as jnp
from jax import lax


def attention(q, k, v, *, axis, is_causal=False):
    size, rank = lax.axis_size(axis), lax.axis_index(axis)
    rows, state = q.shape[2] * rank + jnp.arange(q.shape[2])[:, None], None
    for step in range(size):
        keys = k.shape[2] * ((rank - step) % size) + jnp.arange(k.shape[2])
        s = jnp.matmul(q, k.mT, precision="highest") * q.shape[3] ** -0.5
        s = jnp.where((keys > rows) & is_causal, -1e30, s)
        part = s, v
        state = part if state is None else tuple(jnp.concatenate(x, axis) for x, axis in zip(zip(state, part), (3, 2)))
        k, v = (lax.ppermute(x, axis, [(i, (i + 1) % size) for i in range(size)]) for x in (k, v))
    s, v = state
    p = jnp.exp(s - s.max(-1, keepdims=True))
    return jnp.matmul(p, v, precision="highest") / p.sum(-1, keepdims=True)


attention.ranks = (2, 4)
"""


def wanted(q: Any, k: Any, v: Any, is_causal: bool = False, g: Any = None) -> list[np.ndarray]:
    """Attention in float64, or the gradients of q, k and v for a gradient of the output."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (each.astype(np.float64) for each in (q, k, v))
    k, v = (np.repeat(each, group, axis=1) for each in (k, v))
    s = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[3])
    s = np.where(np.tri(*s.shape[2:]) > 0, s, -np.inf) if is_causal else s
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    if g is None:
        return [p @ v]
    of_p = g @ v.swapaxes(2, 3)
    of_s = p * (of_p - (p * of_p).sum(-1, keepdims=True)) / np.sqrt(q.shape[3])
    of_keys = (each.swapaxes(2, 3) @ other for each, other in ((of_s, q), (p, g)))
    return [of_s @ k, *(each.reshape(len(q), -1, group, *each.shape[2:]).sum(axis=2) for each in of_keys)]


def inputs(heads: int = 2, key_heads: int = 2, rows: int = 8) -> tuple[np.ndarray, ...]:
    """q, k and v in float32."""
    rng = np.random.default_rng(0)
    shapes = ((1, heads, rows, 4), *[(1, key_heads, rows, 4)] * 2)
    return tuple(rng.standard_normal(shape).astype(np.float32) for shape in shapes)


def asked(*arrays: np.ndarray, **keywords: Any) -> Request:
    """A request with q, k and v."""
    return Request("cpu", dict(zip("qkv", arrays, strict=True)), keywords)


def spread(name: str, gradients: str = "", module: str = FUNCTIONS, framework: str = "torch") -> Implementation:
    """A function as a plug-in over two ranks."""
    found = plug_in(f"{module}:{name}@{framework}{gradients}")
    return with_attributes(found, {**attributes_of(load(found.target, found.folder)), "ranks": 2})


def distance(one: Implementation, *arrays: np.ndarray, **keywords: Any) -> float:
    """The largest error of an implementation's results; a fourth array is the output's gradient."""
    reply = call(one, Request("cpu", dict(zip(("q", "k", "v", "grad_output"), arrays, strict=False)), keywords))
    assert reply.status == "returned", reply.text
    q, k, v, *gradient = arrays
    right = wanted(q, k, v, keywords.get("is_causal", False), gradient[0] if gradient else None)
    return max(float(np.abs(got - each).max()) for got, each in zip(reply.results.values(), right, strict=True))


def test_values_of_fewer_heads_than_keys_are_not_shared_out() -> None:
    """A rank has the values of its key heads, so fewer value heads cannot be split."""
    shapes = {"q": (1, 4, 8, 4), "k": (1, 4, 8, 4), "v": (1, 2, 8, 4)}
    with pytest.raises(NotImplementedError, match="v has 2 heads, fewer than"):
        parts(Distribution((2,), "heads"), 2, shapes)


@pytest.mark.slow(8)
def test_ranks_that_accept_invalid_input_do_not_refuse_it() -> None:
    """Results that cannot be joined raise after the call, which is no refusal."""
    q, k, v = inputs()
    reply = call(spread("accepts"), asked(q, k[..., :3], v))
    assert (reply.status, reply.accepted) == ("raised", True)


def test_a_rank_that_ends_while_it_is_to_be_killed_kills_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has ended has the number 0, which would kill the whole process group."""
    killed: list[int] = []
    late: Future[Any] = Future()

    class Ending:
        @property
        def pid(self) -> int:
            late.set_exception(TimedOut("it has just ended"))
            return 0

        def close(self) -> None: ...

    monkeypatch.setattr(os, "kill", lambda pid, _: killed.append(pid))
    group = Group(Framework.TORCH, 1)
    group._workers = [Ending()]  # type: ignore[list-item]
    with pytest.raises(TimedOut):
        group._outcomes([late], 0.01, 0.01)
    assert killed == []


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("length", [0, 1, 5, 12, 17])
def test_what_is_shared_out_comes_together_again(sharding: str, ranks: int, length: int, padded: bool) -> None:
    """Arrays of any length are split and joined, with empty shards or padded ones."""
    shape = (2, length, 3, 4) if sharding == "heads" else (2, 3, length, 4)
    q = np.arange(24 * length, dtype=np.float32).reshape(shape)
    distribution = Distribution((ranks,), sharding, uneven=True, padded=padded)
    part = parts(distribution, ranks, {"q": shape, "k": shape}, ("output",))["output"]
    assert (part.joined([part.of(q, rank) for rank in range(ranks)]) == q).all()
    assert (part.joined(part.apart(part.together(q))) == q).all()


def test_shards_that_are_filled_up_are_equal_and_hold_zeros() -> None:
    """Five rows over four ranks become two each; the last two ranks have one row and none."""
    shape = (1, 1, 5, 1)
    part = parts(Distribution((4,), uneven=True, padded=True), 4, {"q": shape, "k": shape})["q"]
    q = np.ones(shape, np.float32)
    assert [part.of(q, rank)[0, 0, :, 0].tolist() for rank in range(4)] == [[1, 1], [1, 1], [1, 0], [0, 0]]


def test_values_of_another_length_than_the_keys_are_not_filled_up() -> None:
    """They would be padded to the same length, and no function could refuse them."""
    shapes = {"q": (1, 1, 4, 1), "k": (1, 1, 7, 1), "v": (1, 1, 8, 1)}
    with pytest.raises(NotImplementedError, match="unequal lengths"):
        parts(Distribution((4,), uneven=True, padded=True), 4, shapes)


def test_a_call_has_a_number_of_ranks_that_divides_its_lengths() -> None:
    """Several possible numbers are used in turn; if none divides, the first refusal says so."""
    several = Distribution((2, 3, 4, 8))
    found = {
        rows: {several.of_call({"q": (1, 1, rows, d), "k": (1, 1, rows, d)}, {}) for d in range(40)} for rows in (6, 8)
    }
    assert found == {6: {2, 3}, 8: {2, 4, 8}}
    anywhere = Distribution((2, 3, 4, 8), uneven=True)
    assert {anywhere.of_call({"q": (1, 1, 5, d), "k": (1, 1, 7, d)}, {}) for d in range(40)} == {2, 3, 4, 8}


def test_zigzag_gives_a_rank_a_part_of_each_half() -> None:
    """Each rank gets early and late keys, so that causal calls take all ranks equally long."""
    shapes = {"q": (1, 1, 8, 1), "k": (1, 1, 8, 1)}
    found = parts(Distribution((2,), "zigzag"), 2, shapes)["k"]
    assert [each.tolist() for each in found.places] == [[0, 1, 6, 7], [2, 3, 4, 5]]


def test_fewer_key_heads_than_ranks_are_had_by_several() -> None:
    """Ranks that share a key head add up its gradients."""
    shapes = {"q": (1, 4, 2, 3), "k": (1, 2, 2, 3)}
    found = parts(Distribution((4,), "heads"), 4, shapes, ("grad_k",))
    assert [each.tolist() for each in found["k"].places] == [[0], [0], [1], [1]]
    pieces = [np.full((1, 1, 2, 3), 2.0**rank) for rank in range(4)]
    assert found["grad_k"].joined(pieces)[0, :, 0, 0].tolist() == [3, 12]


@pytest.mark.parametrize(
    ("sharding", "shapes", "said"),
    [
        ("contiguous", {"q": (1, 1, 5, 1), "k": (1, 1, 4, 1)}, "5 queries do not divide over 2 ranks"),
        ("zigzag", {"q": (1, 1, 4, 1), "k": (1, 1, 6, 1)}, "6 keys do not divide over 2 ranks"),
        ("heads", {"q": (1, 6, 4, 1), "k": (1, 3, 4, 1)}, "the query heads of a group are on two ranks"),
        ("contiguous", {"q": (1, 1, 4, 1), "k": (1, 1, 4, 1), "past_key": (1, 1, 2, 1)}, "only by heads"),
    ],
)
def test_what_cannot_be_shared_out_is_not_asked(sharding: str, shapes: Any, said: str) -> None:
    """A call that cannot be split over ranks is unsupported, not a failure of the function."""
    with pytest.raises(NotImplementedError, match=said):
        parts(Distribution((2,), sharding), 2, shapes)


def test_a_mask_follows_the_rows_and_has_all_keys() -> None:
    """A mask is split along its rows; one that broadcasts along the rows stays whole."""
    shapes = {"q": (1, 2, 4, 1), "k": (1, 2, 6, 1), "mask": (4, 6), "bias": (2, 1, 6)}
    found = parts(Distribution((2,)), 2, shapes)
    assert found["mask"].axis == -2
    assert found["bias"].axis is None


def test_a_declaration_becomes_the_envelope() -> None:
    """Lengths divide by the fewest ranks, in two parts each; group and lengths are no keywords."""
    found = with_attributes(plug_in(f"{FUNCTIONS}:right@torch"), {"ranks": (2, 3), "sharding": "zigzag"})
    assert str(found.envelope.query_lengths) == "multiples of 4"
    assert 0 in found.envelope.key_lengths
    assert keywords(load(found.target), SDPA) == {"is_causal"}


@pytest.mark.parametrize(
    ("name", "attributes", "said"),
    [
        ("numpy", {"ranks": 2}, "ranks need torch or JAX"),
        ("torch", {"ranks": 0}, "are not numbers of ranks"),
        ("torch", {"ranks": 2, "sharding": "diagonal"}, "is none of contiguous, striped, zigzag, heads"),
        ("jax", {"ranks": 2, "uneven": True, "sharding": "heads"}, "heads of a mesh of JAX divide by its ranks"),
        ("torch", {"ranks": 2, "operator": "merge"}, "merge is not spread over ranks"),
    ],
)
def test_a_declaration_that_means_nothing_is_refused(name: str, attributes: Any, said: str) -> None:
    """A meaningless declaration is refused in one sentence."""
    with pytest.raises(ImplementationError, match=said):
        with_attributes(plug_in(f"{FUNCTIONS}:right@{name}"), attributes)


@pytest.mark.slow(20)
def test_ranks_of_torch_are_one_implementation() -> None:
    """Rows and heads are split, forwards and backwards; a refusal by the ranks is unsupported."""
    pytest.importorskip("torch")
    q, k, v = inputs(4, 2)
    for name in ("right", "heads"):
        assert distance(spread(name), q, k, v, is_causal=True) < 1e-6
        assert distance(spread(name, "+gradients"), q, k, v, q) < 1e-5
    reply = call(spread("refuses"), asked(q, k, v))
    assert (reply.status, reply.text) == ("unsupported", "NotImplementedError: five heads")
    odd = inputs(rows=7)
    assert "7 queries do not divide over 2 ranks" in call(spread("right"), asked(*odd)).text


@pytest.mark.slow(20)
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("disagrees", "rank 1 of 2 disagrees with rank 0: 64 of 64 elements of output differ"),
        ("writes", "rank 1 of 2 modified k"),
        ("raises", "rank 1 of 2 raised ValueError: no such block; rank 0 of 2 waited for it"),
    ],
)
def test_what_one_rank_does_alone_is_an_error(name: str, said: str) -> None:
    """The error has the rank's number."""
    pytest.importorskip("torch")
    reply = call(spread(name), asked(*inputs()))
    assert reply.status == "raised"
    assert said in reply.text


@pytest.mark.slow(20)
def test_ranks_of_a_mesh_are_one_implementation(tmp_path: Path) -> None:
    """They work forwards and backwards, with two and with four devices."""
    pytest.importorskip("jax")
    tmp_path.joinpath("mesh.py").write_text(JAX_RING, encoding="utf-8")
    q, k, v = inputs()
    found = plug_in(f"{tmp_path}/mesh.py:attention@jax")
    for ranks in (2, 4):
        one = with_attributes(found, {"ranks": ranks, "sharding": "contiguous"})
        for is_causal in (False, True):
            assert distance(one, q, k, v, is_causal=is_causal) < 1e-6


@pytest.mark.slow(20)
@pytest.mark.parametrize(
    ("room", "name"),
    [
        *(("torch.rings", name) for name in ("ring", "rotating", "balanced", "balanced_gathered", "public", "heads")),
        ("torch.ring", "attention"),
        *(("jax.rings", n) for n in ("ring", "all_to_all", "sharded")),
    ],
)
def test_a_ring_to_plug_in_is_right(room: str, name: str) -> None:
    """A ring is right forwards and backwards, with causal where it supports that."""
    framework, _, _ = room.partition(".")
    pytest.importorskip(framework)
    arrays, module = inputs(), f"attention_conformance.impls.{room}"
    given = {} if name in ("heads", "public") else {"is_causal": True}
    assert distance(spread(name, "", module, framework), *arrays, **given) < 1e-6
    assert distance(spread(name, "+gradients", module, framework), *arrays, arrays[0], **given) < 1e-5


@pytest.mark.slow(20)
@pytest.mark.parametrize(
    ("room", "name"), [("torch.ring", "attention"), ("jax.rings", "ring"), ("jax.rings", "all_to_all")]
)
def test_a_ring_takes_lengths_that_do_not_divide_and_shards_that_are_empty(room: str, name: str) -> None:
    """Five rows over four ranks, of which torch's last has none, and three key heads work."""
    framework, _, _ = room.partition(".")
    pytest.importorskip(framework)
    found = plug_in(f"attention_conformance.impls.{room}:{name}@{framework}+gradients")
    one = with_attributes(found, {"ranks": 4, "uneven": True})
    q, k, v = inputs(3, 3, 5)
    assert distance(one, q, k, v, q, is_causal=True) < 1e-5
