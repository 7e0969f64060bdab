"""One call from NumPy to NumPy: what the reply says about results, refusals, exceptions and inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attention_conformance.impls import calls, memory_layouts
from attention_conformance.impls.backend import backend
from attention_conformance.impls.contract import Call, Implementation, Layout
from attention_conformance.impls.process import wire


def implementation(name: str, **rest: Any) -> Implementation:
    """One of the fakes as an implementation."""
    return Implementation(name, f"attention_conformance.impls.tests.fakes:{name}", **rest)


def request(**rest: Any) -> calls.Request:
    """A small request with random inputs."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 2, n, 4)).astype(np.float32) for n in (3, 5, 5))
    return calls.Request.qkv("cpu", q, k, v, **rest)


def test_results_come_by_name() -> None:
    """Extra results are named in the order of the contract."""
    reply = calls.call(implementation("right"), request(keywords={"return_lse": True}))
    assert reply.status == "returned"
    assert {name: a.shape for name, a in reply.results.items()} == {"output": (2, 2, 3, 4), "lse": (2, 2, 3)}


def test_not_implemented_is_unsupported_with_its_reason() -> None:
    """NotImplementedError means unsupported, and its message is the reason."""
    reply = calls.call(implementation("refuses"), request())
    assert (reply.status, reply.text) == ("unsupported", "NotImplementedError: only on Tuesdays")


def test_an_exception_is_a_reply_with_its_traceback() -> None:
    """Any other exception is reported with its type, text and the user's frames."""
    reply = calls.call(implementation("raises"), request())
    assert reply.status == "raised"
    assert reply.text == "RuntimeError: no kernel for you"
    assert "fakes.py" in reply.trace


def test_an_exception_is_said_in_its_first_line_and_what_a_colon_announces() -> None:
    """An exception's text is its first line and what a colon announces; the rest, such as an address, is left out."""
    words = "Exception from core.cpp:104:", "Check 'rank' failed at shape.hpp:12:", "a mask has two axes"
    assert calls.text(RuntimeError("\n\n".join([*words, "at 0x1"]))) == f"RuntimeError: {' '.join(words)}"
    assert calls.text(ValueError("no such axis\nsee the manual")) == "ValueError: no such axis"
    assert calls.text(KeyError()) == "KeyError: "


class Unreadable(ValueError):
    """An exception without a readable message."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("bad argument in \udcff"), "ValueError: bad argument in ?"),
        (Unreadable(), "Unreadable: (its message cannot be read: __str__ raises RuntimeError)"),
    ],
    ids=["half a surrogate pair", "raises"],
)
def test_any_message_of_an_exception_can_be_sent(error: Exception, text: str) -> None:
    """A refusal is one whatever its message is: nothing of the reply ends the process that sends it."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise error

    reply = calls.call(implementation("right"), request(), refuse)
    assert (reply.status, reply.text) == ("raised", text)
    wire.result(b"1" * 16, reply, 0.0, 1 << 20)


def test_a_list_is_not_a_result() -> None:
    """A result that is no array of the framework is refused, not converted."""
    reply = calls.call(implementation("a_list"), request())
    assert reply.status == "raised"
    assert "expected a NumPy array, got builtins.list" in reply.text


def test_missing_results_are_named() -> None:
    """Fewer results than requested raise an error that lists the expected ones."""
    reply = calls.call(implementation("careless"), request(keywords={}))
    assert reply.status == "returned"
    with pytest.raises(TypeError, match=r"expected 2 results \(output, lse\), got 1"):
        calls.collect(
            np.zeros(1),
            Call("float32", "cpu", (), (("return_lse", True),)),
            Layout.BHSD,
            backend(implementation("right").framework),
        )


def test_a_modified_input_is_seen() -> None:
    """An input whose contents differ after the call is named."""
    assert calls.call(implementation("modifies"), request()).modified == ("q",)
    assert calls.call(implementation("right"), request()).modified == ()


def test_unequal_repeats_are_seen() -> None:
    """Results that differ between equal calls are named."""
    assert calls.call(implementation("unrepeatable"), request(repeats=3)).unequal == ("output",)
    assert calls.call(implementation("right"), request(repeats=3)).unequal == ()


def test_unequal_repeats_are_seen_in_memory_that_is_used_again() -> None:
    """The first call's result is compared as it was then, even if later calls overwrite its memory."""
    assert calls.call(implementation("unrepeatable_in_a_buffer"), request(repeats=3)).unequal == ("output",)


def test_random_numbers_in_a_result_are_seen_in_memory_that_is_used_again() -> None:
    """The first call's result is reported, not that of the call that it is compared with."""
    reply = calls.call(implementation("random_in_a_buffer"), request())
    assert any("random numbers" in each for each in reply.changed), reply.side_effects
    plain = calls.call(implementation("right"), request()).results["output"]
    assert not np.array_equal(reply.results["output"], plain)


def test_native_layout_is_converted_both_ways() -> None:
    """An implementation with layout (B, S, H, D) is given it, and its output comes back as (B, H, S, D)."""
    some = request()
    plain = calls.call(implementation("right"), some).results["output"]
    native = calls.call(
        Implementation("bshd", "attention_conformance.impls.tests.test_calls:right_bshd", layout=Layout.BSHD), some
    ).results["output"]
    np.testing.assert_array_equal(plain, native)


def right_bshd(q: Any, k: Any, v: Any) -> Any:
    """Correct attention in layout (B, S, H, D)."""
    from attention_conformance.impls.tests.fakes import right

    return right(*(a.transpose(0, 2, 1, 3) for a in (q, k, v))).transpose(0, 2, 1, 3)


@pytest.mark.parametrize("past", list(Layout))
def test_the_past_has_a_layout_of_its_own(past: Layout) -> None:
    """Past and present follow the layout of q, k and v unless another one is declared for them."""
    rng = np.random.default_rng(0)
    earlier = {f"past_{name}": rng.standard_normal((2, 2, 6, 4)).astype(np.float32) for name in ("key", "value")}
    some = request(keywords=earlier)
    for declared in (past, None):
        if declared is None and past is not Layout.BSHD:
            continue
        target = f"attention_conformance.impls.tests.test_calls:joins_{past.value.lower()}"
        reply = calls.call(Implementation("joins", target, layout=Layout.BSHD, past_layout=declared), some)
        np.testing.assert_array_equal(reply.results["present_key"][:, :, :6], earlier["past_key"])
        np.testing.assert_array_equal(reply.results["present_value"][:, :, 6:], some.arrays["v"])


def joins_bshd(q: Any, k: Any, v: Any, *, past_key: Any, past_value: Any) -> Any:
    """The present in layout (B, S, H, D), like k and v; the output does not matter."""
    return q, np.concatenate([past_key, k], 1), np.concatenate([past_value, v], 1)


def joins_bhsd(q: Any, k: Any, v: Any, *, past_key: Any, past_value: Any) -> Any:
    """The present in layout (B, H, S, D), unlike k and v."""
    k, v = (np.swapaxes(a, 1, 2) for a in (k, v))
    return q, np.concatenate([past_key, k], 2), np.concatenate([past_value, v], 2)


def test_a_call_is_prepared_once() -> None:
    """Equal calls share one prepared function; another option or shape prepares another."""
    some = implementation("right")
    _, _, first = calls.arguments(some, request())
    _, _, again = calls.arguments(some, request())
    _, _, other = calls.arguments(some, request(keywords={"scale": 0.5}))
    assert calls.prepared(some, len, first) is calls.prepared(some, len, again)
    assert calls.prepared(some, len, first) is not calls.prepared(some, len, other)


@pytest.mark.parametrize("name", sorted(memory_layouts.LAYOUTS))
@pytest.mark.parametrize("dtype", [np.float32, np.bool_, np.int64])
def test_memory_layouts_keep_the_elements(name: str, dtype: type) -> None:
    """The elements are the same for any strides, in memory of their own."""
    array: np.ndarray = np.arange(48).reshape(2, 3, 4, 2).astype(dtype)
    laid = memory_layouts.lay_out(array, name)
    np.testing.assert_array_equal(laid, array)
    assert not np.shares_memory(laid, array)


def test_memory_layouts_have_their_strides() -> None:
    """Each layout has the strides that it is named for."""
    array = np.ones((2, 3, 4, 5), np.float32)
    assert memory_layouts.lay_out(array, "inner").strides[-1] != 4
    assert memory_layouts.lay_out(array, "sliced").strides[-1] == 8
    assert memory_layouts.lay_out(array, "expanded").strides == (0, 0, 0, 0)
    assert (
        memory_layouts.lay_out(array, "transposed").strides[1] < memory_layouts.lay_out(array, "contiguous").strides[1]
    )


def test_a_guarded_array_has_nan_around_it() -> None:
    """NaN lies directly before and behind a guarded array."""
    guarded = memory_layouts.lay_out(np.ones((2, 3), np.float32), "guarded")
    buffer = guarded.base
    assert buffer is not None
    assert np.isnan(buffer.ravel()[memory_layouts.GUARD - 1])
    assert np.isnan(buffer.ravel()[memory_layouts.GUARD + 6])


class WithHeads:
    """Attention as an object with a method that has the name of an attribute that a function may declare."""

    dtypes = ("float32",)

    def __call__(self, q: Any, k: Any, v: Any) -> Any:
        """Return its first argument."""
        return q

    def heads(self) -> int:
        """A method; it declares nothing about the object's envelope."""
        return 2


with_heads = WithHeads()


def test_a_method_declares_nothing() -> None:
    """Values of a callable object are declarations; its methods of the same names are not."""
    described = calls.describe(Implementation("object", f"{__name__}:with_heads"))
    assert described.attributes == {"dtypes": ("float32",)}
