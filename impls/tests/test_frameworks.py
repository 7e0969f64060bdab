"""Frameworks of functions: by annotations and by the packages that a function names, as an object and in its source."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_conformance.impls.contract import Framework, ImplementationError
from attention_conformance.impls.frameworks import arrays_of, framework_in, framework_of, name_of
from attention_conformance.impls.given import given
from attention_conformance.impls.select import plug_in


def plain(q: Any, k: Any, v: Any) -> Any:
    """Names no framework."""
    return v


def of_torch(q: torch.Tensor, k: Any, v: Any) -> Any:  # type: ignore[name-defined]  # noqa: F821
    """Names by an annotation the framework whose arrays it takes."""
    return v


def with_torch_inside(q: Any, k: Any, v: Any) -> Any:
    """Imports its framework when it is called."""
    import torch

    return torch.softmax(q, -1)


def with_both(q: Any, k: Any, v: Any) -> Any:
    """Names two frameworks."""
    import jax
    import torch

    return jax, torch


def calls_one(q: Any, k: Any, v: Any) -> Any:
    """Leaves the work to a helper."""
    return with_torch_inside(q, k, v)


class Layer:
    """A callable object."""

    def __call__(self, q: Any, k: Any, v: Any) -> Any:
        """Return the values."""
        return v


@pytest.mark.parametrize(
    ("function", "framework"),
    [
        (plain, "numpy"),
        (of_torch, "torch"),
        (with_torch_inside, "torch"),
        (calls_one, "torch"),
        (functools.partial(with_torch_inside), "torch"),
        (Layer(), "numpy"),
        (lambda q, k, v: np.exp(q), "numpy"),
    ],
)
def test_a_framework_is_found(function: Any, framework: str) -> None:
    """The framework is found by annotations, by names, and by the functions that are called."""
    assert framework_of(function) == framework


class Launched:
    """A kernel as Triton's decorator leaves it: an object of Triton's, in the user's module."""


KERNEL = Launched()
Launched.__module__ = "triton.runtime.jit"


def of_triton(q: Any, k: Any, v: Any) -> Any:
    """Launches a kernel, and names torch for its output."""
    import torch

    return KERNEL, torch.empty_like(q)


def of_pallas(q: Any, k: Any, v: Any) -> Any:
    """Calls a kernel."""
    import jax.experimental.pallas as pl

    return pl.pallas_call(q, k, v)  # type: ignore[call-arg]


def test_kernels_are_found_by_what_a_function_names() -> None:
    """They are of a framework, whose arrays the function takes; in this process nothing is interpreted."""
    assert (framework_of(of_triton), framework_of(of_pallas)) == ("triton", "pallas")
    assert (arrays_of("triton"), arrays_of("pallas"), arrays_of("numpy")) == ("torch", "jax", "numpy")
    with given(of_triton) as implementation:
        assert (implementation.framework, implementation.kernels) == ("torch", "triton")
    with given(of_triton, isolated=False) as implementation:
        assert (implementation.framework, implementation.kernels) == ("torch", "")


def test_two_frameworks_are_not_guessed() -> None:
    """A function that uses two frameworks is refused: the user must choose."""
    with pytest.raises(ImplementationError, match="with_both uses jax and torch: say whose arrays it takes"):
        framework_of(with_both)


@pytest.mark.parametrize(
    ("function", "name"),
    [(plain, "plain"), (functools.partial(plain), "plain"), (Layer(), "Layer"), (lambda q, k, v: v, "function")],
)
def test_a_function_has_a_name(function: Any, name: str) -> None:
    """The name is the function's own, or that of its class."""
    assert name_of(function) == name


#: Sources of a function f, and the framework of each.
SOURCES = {
    "import torch\ndef f(q, k, v): return torch.exp(q)": "torch",
    "from torch.nn.functional import scaled_dot_product_attention as f": "torch",
    "from torch import nn\nclass A(nn.Module):\n    def forward(self, q, k, v): return q\nf = A()": "torch",
    "import torch\ndef g(q, k, v): return q\nf = torch.compile(g)": "torch",
    "import torch\n@torch.compile\ndef f(q, k, v): return q": "torch",
    "def f(q, k, v):\n    import torch\n    return torch.exp(q)": "torch",
    "try:\n    import torch\nexcept ImportError:\n    torch = None\ndef f(q, k, v): return torch.exp(q)": "torch",
    "from torch import Tensor\nimport numpy as np\ndef f(q: Tensor, k, v): return q @ np.eye(2)": "torch",
    "import numpy as np, torch\ndef g(q): return torch.exp(q)\ndef f(q, k, v): return g(q) * np.sqrt(2)": "torch",
    "import torch\ndef f(q, k, v): return (q @ k.mT).softmax(-1) @ v": "torch",
    "import jax.numpy as jnp\ndef f(q, k, v): return jnp.exp(q)": "jax",
    "import jax\ndef g(q, k, v): return q\nf = jax.jit(g)": "jax",
    "from jax.experimental import pallas as pl\ndef f(q, k, v): return pl.pallas_call(q)": "pallas",
    "import numpy as np, torch\ndef g(q): return torch.exp(q)\ndef f(q, k, v): return np.exp(q)": "numpy",
    "import torch\ndef f(q, k, v): return torch.exp(torch.from_numpy(q)).numpy()": "numpy",
    "import numpy as np, torch\ndef f(q: np.ndarray, k, v): return np.asarray(torch.exp(torch.tensor(q)))": "numpy",
    "import torch\ndef f(q, k, v): return g(torch.from_numpy(q))": "numpy",
    "import jax, numpy as np\ndef f(q, k, v): return np.asarray(jax.nn.softmax(q))": "numpy",
    "import jax, numpy as np\ndef f(q, k, v):\n    def g(x): return np.eye(2)\n    return jax.jit(g)(q)": "jax",
    "import jax.numpy as np\ndef f(q: np.ndarray, k, v): return q": "jax",
    "from tinygrad import Tensor\nimport numpy as np\ndef f(q: Tensor, k, v): return q": "numpy",
    "import torch\ndef f(q: torch.Tensor, k, v): return q + torch.from_numpy(TABLE)": "torch",
    "import mlx.core as mx\ndef f(q, k, v): return mx.exp(q)": "numpy",
    "def f(q, k, v): return v": "numpy",
    "def f(": "numpy",
}


@pytest.mark.parametrize("source", SOURCES)
def test_a_framework_is_found_in_a_source(source: str, tmp_path: Path) -> None:
    """A function in a file is given the arrays of the framework that its source names, and NumPy's if it names none."""
    (tmp_path / "kernels.py").write_text(source, encoding="utf-8")
    assert framework_in(str(tmp_path / "kernels.py"), "f", str(tmp_path)) == SOURCES[source]


@pytest.mark.parametrize(
    "source",
    [
        "from mine import flash\ndef f(q, k, v): return flash(q, k, v)",
        "import mine\ndef f(q, k, v): return mine.flash(q, k, v)",
        "from mine import flash as f",
        "from .mine import flash as f",
    ],
)
def test_a_framework_is_found_in_the_module_beside_it(source: str, tmp_path: Path) -> None:
    """What a file imports from its folder is followed; nothing of it is run."""
    (tmp_path / "kernels.py").write_text(source, encoding="utf-8")
    (tmp_path / "mine.py").write_text("import torch\nraise SystemExit\ndef flash(q, k, v): return torch.exp(q)")
    assert framework_in("kernels", "f", str(tmp_path)) == "torch"


@pytest.mark.parametrize("source", ["from .torch import helper", "from . import torch", "from ..torch import helper"])
def test_a_relative_import_is_no_package_of_its_name(source: str, tmp_path: Path) -> None:
    """A module beside the file may be called torch; what it names decides."""
    folder = tmp_path / "inner" if ".." in source else tmp_path
    folder.mkdir(exist_ok=True)
    (tmp_path / "torch.py").write_text("import numpy as np\ndef helper(q): return np.exp(q)\n", encoding="utf-8")
    used = "torch.helper" if source.endswith("torch") else "helper"
    path = folder / "mine.py"
    path.write_text(f"{source}\ndef attention(q, k, v): return {used}(q)\n", encoding="utf-8")
    assert framework_in(str(path), "attention", str(folder)) == "numpy"


def test_a_relative_import_of_the_folder_above_is_followed(tmp_path: Path) -> None:
    """Two dots are one folder up, and not a module beside the file."""
    (tmp_path / "inner").mkdir()
    (tmp_path / "parts.py").write_text("import torch\ndef helper(q): return torch.exp(q)\n", encoding="utf-8")
    (tmp_path / "inner" / "parts.py").write_text("def helper(q): return q\n", encoding="utf-8")
    path = tmp_path / "inner" / "mine.py"
    path.write_text("from ..parts import helper\ndef attention(q, k, v): return helper(q)\n", encoding="utf-8")
    assert framework_in(str(path), "attention", str(path.parent)) == "torch"


def test_a_package_says_by_what_it_requires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that names only a library of torch's gets tensors; one of a library for NumPy does not."""
    monkeypatch.setattr(importlib.metadata, "packages_distributions", lambda: {"natten": ["NATTEN"], "mine": ["mine"]})
    requires = {"NATTEN": ["torch>=2.0", "numpy", 'jax; extra == "jax"'], "mine": None}
    monkeypatch.setattr(importlib.metadata, "requires", requires.__getitem__)
    file = tmp_path / "kernels.py"
    for package, framework in (("natten", "torch"), ("mine", "numpy"), ("absent", "numpy")):
        file.write_text(f"import {package}\ndef f(q, k, v): return {package}.attention(q, k, v)", encoding="utf-8")
        assert framework_in(str(file), "f", str(tmp_path)) == framework


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    """An edited function gets the arrays of its new framework in the same process."""
    file = tmp_path / "kernels.py"
    found = []
    for text in ("import torch\nf = torch.exp", "import jax\nf = jax.nn.relu"):
        file.write_text(text, encoding="utf-8")
        found.append(framework_in(str(file), "f", str(tmp_path)))
    assert found == ["torch", "jax"]


def test_a_language_of_kernels_is_found_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Triton a function may take another path, with torch's tensors."""
    file = tmp_path / "kernels.py"
    file.write_text("import torch, triton\n@triton.jit\ndef g(q): pass\ndef f(q, k, v): return g[1,](torch.exp(q))")
    for missing, framework in ((None, "torch"), (object(), "triton")):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, found=missing: found)
        assert framework_in(str(file), "f", str(tmp_path)) == framework


def test_two_frameworks_in_a_source_are_not_guessed(tmp_path: Path) -> None:
    """The user must choose, and what is chosen counts."""
    file = tmp_path / "kernels.py"
    file.write_text("import torch, jax\ndef f(q, k, v): return torch.exp(jax.nn.relu(q))", encoding="utf-8")
    with pytest.raises(ImplementationError, match=r"f in kernels\.py uses jax and torch: say whose arrays it takes"):
        plug_in(f"{file}:f")
    assert plug_in(f"{file}:f@torch").framework is Framework.TORCH
