"""The layers in PyTorch: written out, and torch.nn.MultiheadAttention on each of its two paths."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from attention_conformance.impls.tests.layer_problems import (
    FOUR_WORDS,
    NORMS,
    PROBLEMS,
    assert_four_words,
    assert_right,
    copied,
    four_words,
    problem,
)

torch = pytest.importorskip("torch")

from attention_conformance.impls.torch import arrays as tensors  # noqa: E402
from attention_conformance.impls.torch import layer, modules  # noqa: E402

pytestmark = pytest.mark.slow

DTYPES = ("float64", "float32", "float16", "bfloat16")
#: Problems that the module cannot express, on either path.
INEXPRESSIBLE = {"scale", "heads-not-as-wide-as-input", "no-output-projection", "one-head-no-output-projection"}
SLOW = sorted(PROBLEMS.keys() - INEXPRESSIBLE)
FAST = (
    "plain", "some-biases", "four-heads", "mask", "mask-rows", "mask-per-batch", "mask-padding", "lengths",
    "lengths-weights", "lengths-causal", "causal", "causal-weights", "causal-mask", "weights", "weights-averaged",
)  # fmt: skip


def run(function: Any, arrays: Mapping[str, np.ndarray], options: Mapping[str, Any]) -> Any:
    """Results as NumPy arrays; the inputs share the memory of ``arrays``."""
    found = function(**{name: tensors.put(array, "cpu") for name, array in arrays.items()}, **options)
    return tuple(map(tensors.get, found)) if isinstance(found, tuple) else tensors.get(found)


def check(function: Any, name: str, dtype: str) -> None:
    """Assert that the function is right on a problem, with every intermediate stored in the dtype, inputs unchanged."""
    arrays, options = problem(name, dtype)
    before = copied(arrays)
    assert_right(run(function, arrays, options), arrays, options)
    assert all((arrays[each] == before[each]).all() for each in before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PROBLEMS)
def test_written_out(name: str, dtype: str) -> None:
    """The written-out layer is right in every dtype and form."""
    check(layer.mha, name, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NORMS)
def test_sublayer(name: str, dtype: str) -> None:
    """The sub-layer is right in both forms."""
    check(layer.sublayer, name, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SLOW)
def test_slow_path(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module on its slow path is right wherever it can express the problem, and never takes the fast path."""
    monkeypatch.setattr(torch, "_native_multi_head_attention", _forbidden)
    check(modules.slow, name, dtype)


@pytest.mark.parametrize("name", SLOW)
def test_weights_as_inputs(name: str) -> None:
    """The module with its weights as inputs is right wherever the slow path is."""
    check(modules.functional, name, "float32")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FAST)
def test_fast_path(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module on its fast path is right, and really takes it, exactly once."""
    calls = []
    native = torch._native_multi_head_attention

    def spy(*arguments: Any) -> Any:
        calls.append(len(arguments))
        return native(*arguments)

    monkeypatch.setattr(torch, "_native_multi_head_attention", spy)
    monkeypatch.setattr(torch.nn.functional, "multi_head_attention_forward", _forbidden)
    check(modules.fast, name, dtype)
    assert len(calls) == 1


def test_fast_path_with_gradients_required(monkeypatch: pytest.MonkeyPatch) -> None:
    """An input that requires a gradient does not make the call take the slow path."""
    monkeypatch.setattr(torch.nn.functional, "multi_head_attention_forward", _forbidden)
    arrays, options = problem("plain", "float32")
    given: dict[str, Any] = {name: tensors.put(array, "cpu").requires_grad_() for name, array in arrays.items()}
    assert modules.fast(**given, **options).shape == (2, 5, 8)


def _forbidden(*_: Any, **__: Any) -> Any:
    raise AssertionError("the other path was taken")


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("no-biases", {}, "in_proj_bias"),
        ("plain", {"heads": 1}, "even"),
        ("unbatched", {}, "batched"),
        ("no-output-projection", {}, "output projection"),
        ("heads-not-as-wide-as-input", {}, "wide"),
    ],
)
def test_what_the_fast_path_refuses(name: str, change: dict[str, Any], reason: str) -> None:
    """A call that the module would run on its slow path is unsupported, with the reason."""
    arrays, options = problem(name, "float32")
    with pytest.raises(NotImplementedError, match=reason):
        run(modules.fast, arrays, options | change)


def test_fast_path_switched_off_is_refused() -> None:
    """A fast path that the user has switched off is unsupported; the slow path leaves the switch unchanged."""
    arrays, options = problem("plain", "float32")
    run(modules.slow, arrays, options)
    assert torch.backends.mha.get_fastpath_enabled()
    with modules._fast_path_disabled(), pytest.raises(NotImplementedError, match="fastpath"):
        run(modules.fast, arrays, options)


def test_what_the_module_refuses() -> None:
    """Other widths, a missing output projection, and a boolean mask with an additive one are unsupported."""
    for name in INEXPRESSIBLE - {"scale"}:
        arrays, options = problem(name, "float32")
        with pytest.raises(NotImplementedError):
            run(modules.slow, arrays, options)
    arrays, options = problem("mask", "float32")
    with pytest.raises(NotImplementedError, match="boolean or additive"):
        run(modules.slow, arrays | {"bias": np.zeros((5, 5), "float32")}, options)


@pytest.mark.parametrize("function", [layer.mha, modules.slow, modules.functional, modules.fast])
def test_heads_that_do_not_divide_are_refused(function: Any) -> None:
    """Heads that do not divide the width raise an exception, but not the one for "unsupported"."""
    arrays, options = problem("plain", "float32")
    arrays = {name: a[..., :6] if a.ndim < 3 else a for name, a in arrays.items()}
    arrays |= {"x_q": arrays["x_q"][..., :6], "w_o": arrays["w_o"][:6]}
    arrays |= {name: arrays[name][:6] for name in ("w_q", "w_k", "w_v")}
    with pytest.raises((ValueError, AssertionError), match="divi"):
        run(function, arrays, options | {"heads": 4})


@pytest.mark.parametrize("function", [layer.mha, modules.slow])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", FOUR_WORDS)
def test_four_words(name: str, dtype: str, function: Any) -> None:
    """Source 002's example, which has no batch axis, gives the documented numbers."""
    options, first = FOUR_WORDS[name]
    arrays = {key: array.astype(dtype) for key, array in four_words().items()}
    mask = {key: options[key] for key in options if key == "mask"}
    assert_four_words(run(function, arrays | mask, {"heads": options["heads"]}), first)


def test_module_is_built_once_per_set_of_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same tensors get the same module; other tensors, or the same modified in place, get one with their values."""
    arrays, options = problem("plain", "float32")
    given: dict[str, Any] = {name: tensors.put(array, "cpu") for name, array in arrays.items()}
    built: list[Any] = []
    shape = modules._shape

    def counted(*given: Any) -> Any:
        built.append(given)
        return shape(*given)

    monkeypatch.setattr(modules, "_shape", counted)
    first = modules.slow(**given, **options)
    assert torch.equal(modules.slow(**given, **options), first)
    assert len(built) == 1
    modules.slow(**(given | {"w_q": given["w_q"].clone()}), **options)
    modules.slow(**(given | {"b_o": given["b_o"].clone()}), **options)
    assert len(built) == 3
    given["b_o"].add_(1.0)
    assert torch.allclose(modules.slow(**given, **options), first + 1)


def test_no_module_is_built_again_where_layers_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A benchmark process times many layers in turn, each with several sets of weights."""
    arrays, options = problem("plain", "float32")
    sets: list[dict[str, Any]] = [{n: tensors.put(array, "cpu") for n, array in arrays.items()} for _ in range(12)]
    for given in sets:
        modules.slow(**given, **options)
    monkeypatch.setattr(modules, "_shape", _forbidden)
    for given in sets:
        modules.slow(**given, **options)


def test_a_module_is_not_that_of_a_bias_that_is_no_more() -> None:
    """After a call with biases, a call without them has none, though its first weight is the same."""
    arrays, options = problem("plain", "float32")
    given: dict[str, Any] = {name: tensors.put(array, "cpu") for name, array in arrays.items()}
    before = modules.slow(**given, **options)
    for name in ("b_q", "b_k", "b_v", "b_o"):
        given.pop(name, None)
    assert not torch.equal(modules.slow(**given, **options), before)
    anew = {name: tensor.clone() for name, tensor in given.items()}  # no module was built for these before
    assert torch.equal(modules.slow(**given, **options), modules.slow(**anew, **options))


def test_a_module_goes_with_its_weights() -> None:
    """A module is dropped with its weights, so no case leaves its layer behind."""
    arrays, options = problem("plain", "float32")
    gc.collect()
    kept = len(modules._MODULES)
    given: dict[str, Any] = {name: tensors.put(array, "cpu") for name, array in arrays.items()}
    modules.slow(**given, **options)
    assert len(modules._MODULES) == kept + 1
    del given
    gc.collect()
    assert len(modules._MODULES) == kept


def test_building_a_module_draws_no_random_numbers() -> None:
    """A module's parameters are not initialised, so torch's generator is left unchanged."""
    arrays, options = problem("plain", "float32")
    before = torch.get_rng_state()
    run(modules.slow, arrays, options)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("function", [layer.mha, modules.functional])
def test_exportable(function: Any) -> None:
    """torch.export takes the function with its weights as inputs, a mask, lengths and returned weights."""
    arrays, options = problem("sequence-first-cross-weights", "float32")
    arrays |= {"mask": np.ones((2, 1, 1, 7), bool), "kv_lengths": np.array([7, 4])}

    class Layer(torch.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, *given: Any) -> Any:
            return function(**dict(zip(arrays, given, strict=True)), **options)

    given = tuple(tensors.put(array, "cpu") for array in arrays.values())
    exported = torch.export.export(Layer().eval(), given).module()
    assert_right(tuple(map(tensors.get, exported(*given))), arrays, options)


def test_sublayer_compiles() -> None:
    """torch.compile takes the whole sub-layer, without a graph break at a tensor's value."""
    arrays, options = problem("pre-norm-causal-mask", "float32")
    compiled = torch.compile(layer.sublayer, fullgraph=True, backend="aot_eager")
    assert_right(run(compiled, arrays, options), arrays, options)


def test_the_module_asked_for_weights_has_the_same_output() -> None:
    """The composition that it then uses instead of scaled_dot_product_attention stays inside the limits."""
    arrays, options = problem("lengths-causal", "float64")
    assert_right(run(modules.composed, arrays, options), arrays, options)


def test_gradients_reach_inputs_and_weights() -> None:
    """The written-out layer and the module with its weights as inputs give the same gradients."""
    arrays, options = problem("lengths-causal", "float64")
    found = []
    for function in (layer.mha, modules.functional):
        given: dict[str, Any] = {name: tensors.put(array.copy(), "cpu") for name, array in arrays.items()}
        leaves = [t.requires_grad_() for t in given.values() if t.is_floating_point()]
        function(**given, **options).square().sum().backward()
        found.append([leaf.grad for leaf in leaves])
    # b_k moves all scores of a row equally, so its gradient is zero but for rounding: an absolute limit fits all.
    for one, two in zip(*found, strict=True):
        assert torch.allclose(one, two, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("function", [layer.mha, modules.slow, modules.fast], ids=["written", "slow", "fast"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_scale_by_model_width_is_rejected(dtype: str, function: Any) -> None:
    """The comparison used here detects 1/√(model width), produced by a query that is smaller by √heads."""
    arrays, options = problem("four-heads", dtype)
    smaller = {name: arrays[name] * np.dtype(dtype).type(4**-0.5) for name in ("w_q", "b_q")}
    with pytest.raises(AssertionError, match="times the limit"):
        assert_right(run(function, arrays | smaller, options), arrays, options)


def test_scrambled_heads_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison used here detects source 002's way to combine heads, which mixes batch and sequence."""
    monkeypatch.setattr(layer, "_combine", lambda x: x.permute(2, 1, 0, 3).reshape(x.shape[0], x.shape[2], -1))
    arrays, options = problem("plain", "float32")
    with pytest.raises(AssertionError, match="times the limit"):
        assert_right(run(layer.mha, arrays, options), arrays, options)
