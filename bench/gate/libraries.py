"""Own work: calls of libraries' own attention in a gate's worker, counted however they are reached.

Python functions are wrapped where they are defined, private places included, and wherever their package has them.
Torch's operators are seen below Python by its own profiler, on all threads.  A candidate can tell whether that profiler
runs, if only by the time that an operator takes; so where the task requires own work it runs in every call, timed ones
included, and elsewhere, where calls are only reported, in calls that the seed draws.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from attention_conformance.bench.gate.noticed import Callers, count, frame_of, notice

#: Own attention of libraries: functions by module, as ``name`` or ``Class.name``.
LIBRARY: dict[str, tuple[str, ...]] = {
    "jax.nn": ("dot_product_attention",),
    "jax._src.nn.functions": (
        "dot_product_attention", "_dot_product_attention_core", "_dot_product_attention_xla",
    ),
    "jax._src.cudnn.fused_attention_stablehlo": ("dot_product_attention", "paged_attention"),
    "jax.experimental.pallas.ops.gpu.attention": ("mha", "mha_reference"),
    "jax.experimental.pallas.ops.tpu.flash_attention": ("flash_attention", "mha_reference"),
    "flax.linen": ("dot_product_attention",),
    "flax.linen.attention": ("dot_product_attention",),
    "flax.nnx": ("dot_product_attention",),
    "flash_attn": ("flash_attn_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func"),
    "flash_attn.flash_attn_interface": ("flash_attn_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func"),
    "xformers.ops": ("memory_efficient_attention",),
    "xformers.ops.fmha": ("memory_efficient_attention",),
    "flashinfer": ("single_prefill_with_kv_cache", "single_decode_with_kv_cache"),
    "onnxruntime": ("InferenceSession.__init__", "InferenceSession.run"),
}  # fmt: skip

#: The same for torch, whose compiler would trace the wrappers; so only where the task requires own work.
TORCH: dict[str, tuple[str, ...]] = {
    "torch.nn.modules.activation": ("MultiheadAttention.forward",),
    "torch.nn.functional": ("multi_head_attention_forward",),
    "torch._higher_order_ops.flex_attention": ("FlexAttentionHOP.__call__",),
}

#: Operators that are attention, however they are reached.
OPERATORS = re.compile(
    r"(aten|xformers\w*|_?flash_attn(_\d)?|_vllm\w*|flashinfer)::\w*(scaled_dot_product|flash_attention|flash_attn|"
    r"efficient_attention|native_multi_head_attention|transformer_encoder_layer|flex_attention|cudnn_attention)\w*"
)

#: Functions that say whether torch's profiler runs, functions that switch it, and the modules that have them.
STATE = ("_profiler_enabled", "_profiler_type")
SWITCHES = (
    "_enable_profiler", "_disable_profiler", "_enable_profiler_legacy", "_disable_profiler_legacy", "_prepare_profiler",
    "_enable_record_function",
)  # fmt: skip
PROFILERS = ("torch._C._autograd", "torch.autograd", "torch.autograd.profiler", "torch.profiler.profiler")

#: Wrapped functions, so that none is wrapped twice; and torch, once it is imported.
_WRAPPED: set[Callable[..., Any]] = set()
_TORCH: list[ModuleType] = []


class Counting:
    """Counts the calls of libraries' attention.

    Parameters
    ----------
    callers
        Finds whose code asks for the state of a profiler.
    own_work
        Torch's functions are wrapped, too.
    """

    def __init__(self, callers: Callers, own_work: bool) -> None:
        self._callers = callers
        self._places = {**LIBRARY, **(TORCH if own_work else {})}
        #: Modules whose import is reported.
        self.names = frozenset((*self._places, "torch"))

    def imported(self, name: str, module: ModuleType) -> None:
        """Wrap what a module has, and for torch also the modules that it imported itself."""
        if name == "torch":
            _TORCH[:] = [module]
            self._guard()
            for each in TORCH.keys() & self._places.keys() & sys.modules.keys():
                self._wrap(each, sys.modules[each])
        elif name in self._places and ("torch" not in name or _TORCH):
            self._wrap(name, module)

    def begin(self) -> None:
        """Wrap what is imported already."""
        for name in ("torch", *self._places):
            if name in sys.modules:
                self.imported(name, sys.modules[name])

    def _wrap(self, name: str, module: ModuleType) -> None:
        for place in self._places[name]:
            owner, _, attribute = place.rpartition(".")
            holder = getattr(module, owner, None) if owner else module
            function = getattr(holder, attribute, None)
            if function is None or function in _WRAPPED:
                continue
            wrapped = _counting(f"{name}.{place}", function)
            setattr(holder, attribute, wrapped)
            if not owner:
                _spread(name.partition(".")[0], function, wrapped)

    def _guard(self) -> None:
        """Notice a candidate that asks whether torch's profiler runs, or switches it."""
        for place in PROFILERS:
            for names, asks in ((STATE, self._callers.direct), (SWITCHES, self._callers.anywhere)):
                for name in names:
                    function = getattr(sys.modules.get(place), name, None)
                    if function is not None and function not in _WRAPPED:
                        wrapped = _guarded(function, f"it asks for torch's profiler ({name})", asks)
                        setattr(sys.modules[place], name, wrapped)


def _counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def counted(*arguments: Any, **keywords: Any) -> Any:
        count(name)
        return function(*arguments, **keywords)

    return _bare(counted)


def _guarded(function: Callable[..., Any], text: str, asks: Callable[..., bool]) -> Callable[..., Any]:
    @functools.wraps(function)
    def guarded(*arguments: Any, **keywords: Any) -> Any:
        if asks(frame_of(1)):
            notice("looks", text)
        return function(*arguments, **keywords)

    return _bare(guarded)


def _bare(wrapped: Callable[..., Any]) -> Callable[..., Any]:
    """The function without the attribute that leads past it."""
    del wrapped.__wrapped__  # type: ignore[attr-defined]
    _WRAPPED.add(wrapped)
    return wrapped


def _spread(package: str, function: Callable[..., Any], wrapped: Callable[..., Any]) -> None:
    """Put the wrapped function wherever the loaded modules of its package have it."""
    for name, module in list(sys.modules.items()):
        if name == package or name.startswith(f"{package}."):
            for attribute, value in list(vars(module).items()):
                if value is function:
                    setattr(module, attribute, wrapped)


def _all_threads(torch: Any) -> Any:
    """The profiler's settings; an older torch profiles the calling thread, and its own threads that work for it."""
    settings = torch._C._profiler._ExperimentalConfig
    try:
        return settings(profile_all_threads=True)
    except TypeError:
        return settings()


def count_torch(run: Callable[[], Any]) -> Any:
    """Result of ``run``, with torch's own attention counted on all threads, however it is reached."""
    torch = _TORCH[0] if _TORCH else None
    if torch is None:
        return run()
    with torch.autograd.profiler.profile(use_kineto=True, experimental_config=_all_threads(torch)) as seen:
        torch.autograd.profiler._set_is_profiler_enabled(False)  # a variable, which can be read unseen
        returned = run()
        torch.empty(0)  # is seen unless ``run`` changed the profiler
    names = [each.name() for each in seen.kineto_results.events()]
    if "aten::empty" not in names:
        notice("patched", "it turned torch's profiler off")
    for name in names:
        if OPERATORS.fullmatch(name):
            count(name)
    return returned
