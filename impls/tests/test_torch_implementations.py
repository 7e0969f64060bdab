"""Torch's implementations compared with the reference, inside the bound of the profile that each declares."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from attention_conformance.conformance.cases import all_cases
from attention_conformance.conformance.judging.compare import compare
from attention_conformance.impls.calls import Reply, Request, call, describe
from attention_conformance.impls.contract import Implementation
from attention_conformance.impls.operators import OPERATORS
from attention_conformance.impls.torch import IMPLEMENTATIONS

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")

BY_NAME = {each.name: each for each in IMPLEMENTATIONS}
#: One or two cases of every group that the written-out implementation must get right, in each dtype of the case.
WRITTEN_OUT = (
    "plain", "one-query", "value-width-larger", "heads-4-over-2", "empty-keys", "empty-queries", "long",
    "scale-zero", "scale-negative", "softcap", "mask", "bias", "causal-more-keys", "offset-negative", "window-both",
    "lengths", "lse", "weights", "range-product-overflows", "masked-large-values", "nan-query",
    "memory-inner", "memory-guarded", "inputs-unchanged", "repeat",
)  # fmt: skip
#: Cases that scaled_dot_product_attention gets right on the CPU, whichever backend computes them.
LIBRARY = ("plain", "one-query", "heads-4-over-2", "scale-given", "mask", "bias", "causal-more-keys", "tiles")


def reply(implementation: Implementation, name: str, dtype: str) -> Reply:
    """The implementation's reply to a case on the CPU."""
    case = all_cases()[name]
    x = case.inputs(dtype)
    return call(implementation, Request.qkv("cpu", x.q, x.k, x.v, x.keywords, case.memory, case.repeats))


def assert_within_bound(implementation: Implementation, name: str, dtype: str) -> None:
    """Assert that the reply has every result inside the bound, unmodified inputs and equal repeats."""
    case, answer = all_cases()[name], reply(implementation, name, dtype)
    assert (answer.status, answer.modified, answer.unequal) == ("returned", (), ()), answer.text
    assert tuple(answer.results) == case.results()
    bound = case.bound(dtype, implementation.profile(dtype))
    for result, got in answer.results.items():
        expected = getattr(case.expected(dtype), result)
        assert got.shape == expected.shape
        assert compare(result, got, expected, getattr(bound, result), str(got.dtype)).ok, (name, dtype, result)


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_written_out(name: str) -> None:
    """The written-out implementation follows the spec in every dtype of the case."""
    for dtype in all_cases()[name].dtypes:
        assert_within_bound(BY_NAME["torch-eager"], name, dtype)


@pytest.mark.parametrize("implementation", ["torch-sdpa", "torch-sdpa-math", "torch-sdpa-flash"])
@pytest.mark.parametrize("name", LIBRARY)
def test_sdpa(implementation: str, name: str) -> None:
    """The adapter calls the library's function so that ordinary inputs give right results, in the declared profile."""
    for dtype in all_cases()[name].dtypes:
        assert_within_bound(BY_NAME[implementation], name, dtype)


def test_flex() -> None:
    """The adapter calls flex_attention so that grouped heads give right results; each new rule takes it seconds."""
    assert_within_bound(BY_NAME["torch-flex"], "heads-grouped-causal", "float32")


def test_mask_and_bias_together_are_unsupported() -> None:
    """scaled_dot_product_attention has one attn_mask, so a call with mask and bias is unsupported, not wrong."""
    answer = reply(BY_NAME["torch-sdpa"], "combined-mask-bias-minus-inf", "float32")
    assert answer.status == "unsupported"
    assert "attn_mask" in answer.text


def test_forced_kernel_that_refuses_is_unsupported() -> None:
    """The flash kernel needs Dv = D; other calls are unsupported, and never get another kernel's result."""
    assert reply(BY_NAME["torch-sdpa-flash"], "value-width-larger", "float32").status == "unsupported"
    assert reply(BY_NAME["torch-sdpa-math"], "value-width-larger", "float32").status == "returned"


def test_other_exceptions_are_passed_on() -> None:
    """Torch's exception for inputs that do not fit together is not taken for "unsupported"."""
    assert reply(BY_NAME["torch-sdpa"], "invalid-dtypes", "float32").status == "raised"


#: Functions compiled in one form take no option, and nested tensors have no causal backend on the CPU.
WITHOUT_OPTIONS = ("torch-flex-compile", "torch-varlen-nested")


@pytest.mark.parametrize("implementation", sorted(BY_NAME))
def test_signature_is_readable(implementation: str) -> None:
    """Every target can be loaded, and its keywords are among its operator's."""
    keywords, known = describe(BY_NAME[implementation]).keywords, OPERATORS[BY_NAME[implementation].operator].keywords
    assert "is_causal" in keywords or "is_causal" not in known or implementation in WITHOUT_OPTIONS
    assert keywords <= set(known)


def test_eager_can_be_exported() -> None:
    """The written-out function has no control flow on values: torch.export takes it with every array keyword."""
    from attention_conformance.impls.torch.eager import attention

    class Layer(torch.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, q, k, v, mask, bias, lengths, offset):  # type: ignore[no-untyped-def]
            return attention(
                q, k, v, mask=mask, bias=bias, kv_lengths=lengths, is_causal=True, causal_offset=offset,
                window=(3, None), softcap=2.0, scale=0.3,
            )  # fmt: skip

    q, k = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8)
    mask, bias = torch.rand(2, 1, 5, 7) < 0.5, torch.randn(4, 5, 7)
    arguments = (q, k, k + 1, mask, bias, torch.tensor([7, 0]), torch.tensor([2, -1]))
    exported = torch.export.export(Layer(), arguments).module()
    assert torch.equal(exported(*arguments), Layer()(*arguments))


@pytest.mark.parametrize(("named", "expected"), [(None, "user/attention-conformance/torch"), ("mine", "mine")])
def test_compiled_code_is_kept_in_the_cache_folder_of_the_user(
    named: str | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is used unless the user has set another one."""
    from attention_conformance.impls.torch.compiled import keep_compilations

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / (named or "")))
    if named is None:
        monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    keep_compilations()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / expected)


def test_cache_folder_that_cannot_be_made_leaves_the_choice_to_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here a file is where the folder would be."""
    from attention_conformance.impls.torch.compiled import keep_compilations

    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    keep_compilations()
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ


def test_gradients_of_a_plug_in_leave_the_limits_of_torch_as_they_are() -> None:
    """Imports and limits of torch's compiler are set only where the suite compiles; a plug-in may compile by itself."""
    code = (
        "import sys, attention_conformance.impls.torch.gradients",
        "assert 'torch._dynamo.config' not in sys.modules",
        "from attention_conformance.impls.torch.compiled import FORMS, compile_function",
        "import torch",
        "assert torch._dynamo.config.recompile_limit != FORMS",
        "compile_function(len)",
        "assert torch._dynamo.config.recompile_limit == FORMS",
    )
    done = subprocess.run([sys.executable, "-c", "\n".join(code)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
