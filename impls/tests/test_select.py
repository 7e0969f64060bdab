"""Texts that ``--impl`` accepts, and the implementations that they select."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from pathlib import Path

import pytest

from attention_conformance.impls import select
from attention_conformance.impls.contract import Framework, ImplementationError, Profile


def test_no_pattern_means_every_builtin() -> None:
    """Without a pattern every built-in implementation is selected, installed or not."""
    names = {i.name for i in select.select()}
    assert set(select.builtin()) <= names
    assert {i.framework for i in select.select()} == set(Framework)


def test_a_glob_selects_by_name() -> None:
    """A glob selects the names it matches, each once."""
    names = [i.name for i in select.select(["numpy-*", "numpy-eager"])]
    assert "numpy-eager" in names
    assert len(names) == len(set(names))
    assert all(name.startswith("numpy-") for name in names)


def test_an_unknown_name_suggests_the_nearest() -> None:
    """A misspelt name is refused with the nearest ones."""
    with pytest.raises(ImplementationError, match="did you mean numpy-eager"):
        select.select(["numpy-egaer"])


def test_a_file_and_its_framework() -> None:
    """``path.py:function@torch`` is given torch tensors."""
    found = select.plug_in(f"{Path(__file__).with_name('fakes.py')}:right@torch")
    assert found.framework is Framework.TORCH
    assert found.requires == ("torch",)
    assert found.folder == str(Path(__file__).parent)


@pytest.mark.parametrize("folder", ["jdoe@corp.com", "C:", "a.py:b", "one two"])
def test_a_path_may_have_any_letters(tmp_path: Path, folder: str) -> None:
    """An @ and a colon before ".py:" belong to the path."""
    file = tmp_path / folder / "attn.py"
    file.parent.mkdir()
    file.write_text("def attention(q, k, v): ...\n")
    (found,) = select.select([f"{file}:attention@torch+gradients"])
    assert (found.target, found.framework) == (f"{file}:attention", Framework.TORCH)
    assert found.function_of == "sdpa"


def test_a_module_of_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``package.module:function`` is searched in the working folder first."""
    monkeypatch.chdir(tmp_path)
    assert select.plug_in("mine.kernels:attention").folder == str(tmp_path)


def test_entry_points_are_implementations(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that a package registers in the group is selected by its name, and by default."""
    entry = importlib.metadata.EntryPoint("theirs", "their.package:attention@jax", select.ENTRY_POINTS)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry] * (group == select.ENTRY_POINTS))
    (found,) = select.select(["their*"])
    assert (found.name, found.target, found.framework) == ("theirs", "their.package:attention", Framework.JAX)
    assert "theirs" in {i.name for i in select.select()}


def test_an_entry_point_of_two_frameworks_ends_no_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A function that a package registers without saying whose arrays it takes gets NumPy's."""
    (tmp_path / "theirs.py").write_text("import torch, jax\ndef f(q, k, v): return torch.exp(jax.nn.relu(q))")
    monkeypatch.chdir(tmp_path)
    entry = importlib.metadata.EntryPoint("theirs", "theirs:f", select.ENTRY_POINTS)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry] * (group == select.ENTRY_POINTS))
    (found,) = select.select(["theirs"])
    assert found.framework is Framework.NUMPY


def test_a_jax_plug_in_keeps_64_bits() -> None:
    """A function that takes JAX arrays runs with float64 enabled."""
    assert select.plug_in("a.b:c@jax").prepare == "attention_conformance.impls.jax.prepare:eager"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("absent.py:f", "no file absent.py"),
        ("mykernels.py", "needs the name of its function"),
        ("a:b@troch", "did you mean torch"),
        ("a:b c", "is not path.py:function"),
    ],
)
def test_malformed_text_is_refused(text: str, message: str) -> None:
    """A text that names no function is refused with the expected form."""
    with pytest.raises(ImplementationError, match=message):
        select.select([text])


def test_a_missing_package_is_known_without_importing_it() -> None:
    """An implementation knows which of its packages are missing."""
    some = dataclasses.replace(select.builtin()["numpy-eager"], requires=("numpy", "no_such_package"))
    assert some.missing() == ("no_such_package",)


def test_attributes_of_a_function_become_fields() -> None:
    """A plug-in may declare dtypes, profiles and layout on its function."""
    some = select.builtin()["numpy-eager"]
    changed = select.with_attributes(some, {"dtypes": ["float16"], "profiles": {"float16": "fused"}, "layout": "BSHD"})
    assert changed.dtypes == ("float16",)
    assert changed.profile("float16") is Profile.FUSED


@pytest.mark.parametrize(
    "attributes",
    [
        {"dtypes": ["float17"]},
        {"dtypes": "float32"},
        {"profiles": {"float16": "exact"}},
        {"profiles": {"float17": "wide"}},
        {"profiles": {"tpu-float32": "wide"}},
        {"profiles": {"float64": "tf32"}},
        {"profiles": {"cuda-float16": "tf32"}},
        {"profiles": {"float32": "storage"}},
        {"layout": "HBSD"},
        {"not_together": "mask"},
        {"not_together": ("mask", "bias")},
    ],
)
def test_attributes_that_mean_nothing_are_refused(attributes: dict[str, object]) -> None:
    """A declared value that is unknown to the contract is refused."""
    with pytest.raises(ImplementationError, match="not understood"):
        select.with_attributes(select.builtin()["numpy-eager"], attributes)


def test_a_text_in_the_place_of_a_tuple_is_told_as_it_was_written() -> None:
    """The error quotes the text as written, and not its letters."""
    some = select.builtin()["numpy-eager"]
    with pytest.raises(ImplementationError, match="dtypes is 'float32', expected a tuple of names"):
        select.with_attributes(some, {"dtypes": "float32"})
    with pytest.raises(ImplementationError, match="not_together is 'mask', expected tuples of names"):
        select.with_attributes(some, {"not_together": "mask"})


def test_a_profile_may_be_of_one_device() -> None:
    """A function that multiplies float32 in TF32 only on a GPU may declare so, and is judged as wide elsewhere."""
    attributes = {"profiles": {"cuda-float32": "tf32", "float16": "fused"}}
    changed = select.with_attributes(select.builtin()["numpy-eager"], attributes)
    assert (changed.profile("float32"), changed.profile("float32", "cuda")) == (Profile.WIDE, Profile.TF32)
    assert changed.profile("float16", "cuda") is Profile.FUSED


def test_jax_nn_is_held_to_tf32_on_a_gpu_alone() -> None:
    """TF32 is JAX's default for float32 there, and jax.nn takes no precision; our own functions request more."""
    found = select.builtin()
    assert found["jax-nn"].profile("float32", "cuda") is Profile.TF32
    assert {found[name].profile("float32", "cuda") for name in ("jax-jit", "jax-tiled", "torch-sdpa")} == {Profile.WIDE}
    assert found["jax-nn"].profile("float32") is Profile.WIDE


def test_undeclared_profiles_have_a_default() -> None:
    """Without a declaration float32 is judged as wide and half precision as storage."""
    some = select.plug_in("a.b:c")
    assert some.profile("float32") is Profile.WIDE
    assert some.profile("bfloat16") is Profile.STORAGE


def test_gradients_of_a_plug_in_are_those_of_its_framework() -> None:
    """+gradients makes an sdpa_grad implementation of an sdpa function, by autograd or vjp."""
    for framework in ("torch", "jax"):
        plugged = select.plug_in(f"attention_conformance.impls.{framework}.eager:attention@{framework}+gradients")
        assert (plugged.operator, plugged.function_of) == ("sdpa_grad", "sdpa")
        assert plugged.prepare == f"attention_conformance.impls.{framework}.gradients:prepare"


def test_gradients_of_a_plugged_in_layer_are_those_of_the_layer() -> None:
    """A function that declares mha has the gradients of mha once it is imported; no other operator has any."""
    plugged = select.plug_in("attention_conformance.impls.tests.fakes:right@torch+gradients")
    of_layer = select.with_attributes(plugged, {"operator": "mha"})
    assert (of_layer.operator, of_layer.function_of) == ("mha_grad", "mha")
    assert select.with_attributes(of_layer, {"operator": "mha"}) == of_layer
    with pytest.raises(ImplementationError, match="there is no operator for the gradients of 'sublayer'"):
        select.with_attributes(plugged, {"operator": "sublayer"})


def test_numpy_does_not_differentiate() -> None:
    """The refusal says what to do instead."""
    with pytest.raises(ImplementationError, match='operator = "sdpa_grad"'):
        select.plug_in("attention_conformance.impls.numpy.eager:attention+gradients")
