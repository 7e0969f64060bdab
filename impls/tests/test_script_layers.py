"""Calls of layers in a script: ``nn.MultiheadAttention`` as the adapter calls it, and options of jitted layers."""

from __future__ import annotations

import ast
import importlib
from typing import Any

import numpy as np
import pytest

from attention_conformance.impls.contract import Call
from attention_conformance.impls.torch.script import definition

pytestmark = pytest.mark.slow

#: Two batches of three rows with eight columns, in two heads.
INPUTS = {"x_q": (2, 3, 8), "w_q": (8, 8), "w_k": (8, 8), "w_v": (8, 8)}
PARAMETERS = {"w_o": (8, 8), "b_q": (8,), "b_k": (8,), "b_v": (8,), "b_o": (8,)}


def call(dtype: str = "float32", device: str = "cpu", shapes: Any = None, **options: Any) -> Call:
    """A call with every parameter; ``shapes`` adds or changes arrays, and leaves out those that are None."""
    given = {**INPUTS, **PARAMETERS, **(shapes or {})}
    found = tuple((name, shape) for name, shape in given.items() if shape is not None)
    return Call(dtype, device, found, tuple(sorted({"heads": 2, **options}.items())), "mha")


def body(path: str, given: Call) -> list[str]:
    """The function's statements, each on one line."""
    function = ast.parse("\n".join(definition(path, given))).body[-1]
    assert isinstance(function, ast.FunctionDef)
    return [ast.unparse(statement) for statement in function.body]


def masks(path: str = "slow", shapes: Any = None, **options: Any) -> list[str]:
    """The statements that make the masks, and the call of the module."""
    found = body(path, call(shapes=shapes, **options))
    return [line for line in found if "mask" in line]


# The module.


def test_the_module_gets_the_parameters() -> None:
    """Weights are transposed, as a Linear holds them, and packed; keys and values are the query."""
    assert body("fast", call()) == [
        "module = MultiheadAttention(8, 2, batch_first=True)",
        "module.eval().requires_grad_(False)",
        "state = {'in_proj_weight': torch.cat((w_q, w_k, w_v), dim=1).mT, 'out_proj.weight': w_o.mT,"
        " 'in_proj_bias': torch.cat((b_q, b_k, b_v)), 'out_proj.bias': b_o}",
        "module.load_state_dict(state)",
        "output, _ = module(x_q, x_q, x_q, need_weights=False)",
        "return output",
    ]


def test_keys_of_another_width_have_weights_of_their_own() -> None:
    """The module has separate weights where kdim is not embed_dim."""
    lines = body("slow", call(shapes={"x_kv": (2, 4, 5), "w_k": (5, 8), "w_v": (5, 8)}, sequence_first=True))
    assert lines[0] == "module = MultiheadAttention(8, 2, kdim=5, vdim=5)"
    assert "'q_proj_weight': w_q.mT, 'k_proj_weight': w_k.mT, 'v_proj_weight': w_v.mT" in lines[2]
    assert "output, _ = module(x_q, x_kv, x_kv, need_weights=False)" in lines


def test_absent_biases_are_zeros_beside_others_and_none_alone() -> None:
    """The module has all biases or none."""
    some = body("slow", call("float16", shapes={"b_q": None, "b_o": None}))
    none = body("slow", call(shapes=dict.fromkeys(("b_q", "b_k", "b_v", "b_o"))))
    assert some[0] == "module = MultiheadAttention(8, 2, batch_first=True, dtype=torch.float16)"
    assert "b_q = b_o = x_q.new_zeros(8)" in some
    assert none[0] == "module = MultiheadAttention(8, 2, bias=False, batch_first=True)"
    assert not any("bias'" in line for line in none)


@pytest.mark.parametrize(("averaged", "wanted"), [(True, ""), (False, ", average_attn_weights=False")])
def test_weights_are_averaged_only_if_asked(averaged: bool, wanted: str) -> None:
    """The module averages weights unless told not to."""
    lines = body("slow", call(return_weights=True, average_weights=averaged))
    assert lines[-2:] == [f"output, weights = module(x_q, x_q, x_q{wanted})", "return (output, weights)"]


def test_only_the_slow_path_turns_the_fast_one_off() -> None:
    """Only the fast path needs a mode without gradients."""
    assert definition("slow", call())[0] == "torch.backends.mha.set_fastpath_enabled(False)"
    assert definition("fast", call())[0] == "@torch.no_grad()"
    assert not any("fastpath" in line for line in definition("fast", call()))


def test_the_functional_module_is_given_its_parameters() -> None:
    """The functional form is for export, with weights as inputs."""
    lines = body("functional", call(is_causal=True))
    assert lines[0] == "module = MultiheadAttention(8, 2, batch_first=True, device='meta')"
    assert lines[-2] == (
        "output, _ = torch.func.functional_call(module, state, (x_q, x_q, x_q),"
        " {'is_causal': True, 'attn_mask': attn_mask, 'need_weights': False})"
    )


def test_a_module_stands_on_the_device_of_the_call() -> None:
    """The module and its masks are on the device of the call."""
    lines = body("slow", call(device="cuda", shapes={"kv_lengths": (2,)}))
    assert lines[0] == "module = MultiheadAttention(8, 2, batch_first=True, device='cuda')"
    assert "key_padding_mask = torch.arange(3, device='cuda') >= kv_lengths[:, None]" in lines


# Masks.

CALLED = "output, _ = module(x_q, x_q, x_q, {}, need_weights=False)"
TRIANGLE = "torch.ones(3, 3, dtype=torch.bool).triu(diagonal=1)"


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        ((2, 2, 3, 3), ["attn_mask = ~mask", "attn_mask = attn_mask.flatten(0, 1)"]),
        ((2, 1, 3, 3), ["attn_mask = ~mask", "attn_mask = attn_mask.expand(2, 2, 3, 3).flatten(0, 1)"]),
        ((1, 1, 3, 3), ["attn_mask = ~mask", "attn_mask = attn_mask.reshape(3, 3)"]),
        ((3, 3), ["attn_mask = ~mask"]),
        ((3,), ["attn_mask = ~mask", "attn_mask = attn_mask.reshape(1, 3).expand(3, 3)"]),
    ],
)
def test_a_mask_says_where_not_to_attend(shape: tuple[int, ...], wanted: list[str]) -> None:
    """The mask becomes (Sq, Sk) or (B · H, Sq, Sk)."""
    assert masks(shapes={"mask": shape}) == [*wanted, CALLED.format("attn_mask=attn_mask")]


def test_padding_is_the_other_mask() -> None:
    """Padding comes from a mask (B, 1, 1, Sk), from lengths, or from both."""
    called = CALLED.format("key_padding_mask=key_padding_mask")
    assert masks(shapes={"mask": (2, 1, 1, 3)}) == ["key_padding_mask = ~mask.reshape(2, 3)", called]
    both = "key_padding_mask = (torch.arange(3) >= kv_lengths[:, None]) | ~mask.reshape(2, 3)"
    assert masks(shapes={"mask": (2, 1, 1, 3), "kv_lengths": (2,)}) == [both, called]


def test_unbatched_padding_has_no_batch_axis() -> None:
    """Without a batch axis the module expects (Sk,)."""
    lines = masks(shapes={"x_q": (3, 8), "mask": (2, 3, 3)})
    assert lines[:2] == ["attn_mask = ~mask", "attn_mask = attn_mask.expand(1, 2, 3, 3).flatten(0, 1)"]
    lines = masks(shapes={"x_q": (3, 8), "mask": (1, 1, 3)})
    assert lines[:2] == ["key_padding_mask = ~mask.reshape(1, 3)", "key_padding_mask = key_padding_mask[0]"]


def test_causal_is_the_triangle_and_a_hint_where_it_is_alone() -> None:
    """With only the hint the module does not look at attn_mask."""
    alone = [f"attn_mask = {TRIANGLE}", CALLED.format("is_causal=True, attn_mask=attn_mask")]
    joined = [f"attn_mask = ~mask | {TRIANGLE}", CALLED.format("attn_mask=attn_mask")]
    assert masks(is_causal=True) == alone
    assert masks(shapes={"mask": (3, 3)}, is_causal=True) == joined


def test_a_bias_is_additive_and_so_is_all_that_stands_beside_it() -> None:
    """All masks of a call are of one kind."""
    assert masks(shapes={"bias": (3, 3), "kv_lengths": (2,)}, is_causal=True) == [
        "key_padding_mask = torch.arange(3) >= kv_lengths[:, None]",
        "zeros = torch.zeros_like(key_padding_mask, dtype=bias.dtype)",
        "key_padding_mask = zeros.masked_fill(key_padding_mask, -torch.inf)",
        f"attn_mask = bias.masked_fill({TRIANGLE}, -torch.inf)",
        CALLED.format("key_padding_mask=key_padding_mask, attn_mask=attn_mask"),
    ]


@pytest.mark.parametrize(
    ("path", "shapes"),
    [
        ("slow", {"w_o": None}),
        ("slow", {"w_q": (8, 6)}),
        ("slow", {"w_v": (8, 6)}),
        ("slow", {"mask": (3, 3), "bias": (3, 3)}),
        ("fast", {"bias": (3, 3)}),
        ("fast", {"x_kv": (2, 4, 8)}),
        ("fast", dict.fromkeys(("b_q", "b_k", "b_v", "b_o"))),
    ],
)
def test_what_the_module_does_not_express_is_not_written(path: str, shapes: Any) -> None:
    """The adapter refuses the same calls."""
    with pytest.raises(NotImplementedError):
        definition(path, call(shapes=shapes))


@pytest.mark.parametrize("path", ["fast", "slow", "functional"])
@pytest.mark.parametrize("shapes", [{}, {"mask": (2, 2, 3, 3)}, {"mask": (1, 1, 3, 3)}, {"kv_lengths": (2,)}])
@pytest.mark.parametrize("is_causal", [False, True])
def test_what_is_written_computes_what_the_adapter_does(path: str, shapes: Any, is_causal: bool) -> None:
    """Results are equal bit for bit, with weights and without them."""
    torch = pytest.importorskip("torch")
    modules = importlib.import_module("attention_conformance.impls.torch.modules")
    rng = np.random.default_rng(0)
    asked: tuple[dict[str, Any], ...] = (
        {},
        {"return_weights": True},
        {"return_weights": True, "average_weights": True},
    )
    for options in asked:
        given = call(shapes=shapes, is_causal=is_causal, **options)
        arrays = {name: torch.from_numpy(rng.standard_normal(shape, np.float32)) for name, shape in given.shapes}
        arrays |= {"mask": arrays["mask"] > 0} if "mask" in arrays else {}
        arrays |= {"kv_lengths": torch.tensor([3, 1])} if "kv_lengths" in arrays else {}
        wanted = getattr(modules, path)(**arrays, **given.static)
        before = torch.backends.mha.get_fastpath_enabled()
        try:
            names: dict[str, Any] = {"torch": torch, "MultiheadAttention": torch.nn.MultiheadAttention}
            exec("\n".join(definition(path, given)), names)  # noqa: S102  (the text under test)
            found = names["mha"](*arrays.values())
        finally:
            torch.backends.mha.set_fastpath_enabled(before)
        pairs = zip(found, wanted, strict=True) if options else [(found, wanted)]
        assert all(torch.equal(a.nan_to_num(9), b.nan_to_num(9)) for a, b in pairs)


# Others.


def test_jitted_functions_take_the_same_numbers_as_arguments() -> None:
    """The script follows attention_conformance.impls.jax.prepare; heads and switches are part of the program."""
    pytest.importorskip("jax")
    script = importlib.import_module("attention_conformance.impls.jax.script")
    assert script.NUMBERS == importlib.import_module("attention_conformance.impls.jax.prepare").NUMBERS
    snippet = script.CALLS["jax-layer"](call(scale=0.5, is_causal=True))
    assert snippet.definitions == 'jitted = jax.jit(mha, static_argnames=["heads", "is_causal"])'
