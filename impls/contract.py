"""Implementation: one function, the keywords that it accepts, and a record that describes it.

The function is one of an operator (``operators.py``); here is ``sdpa``.  It takes ``q (B, Hq, Sq, D)``,
``k (B, Hkv, Sk, D)`` and ``v (B, Hkv, Sk, Dv)`` as arrays of its framework and returns the output
``(B, Hq, Sq, Dv)``; with ``return_weights`` or ``return_lse`` it returns the tuple (output, weights, lse),
in that order, without the ones not requested; with ``past_key`` and ``past_value`` the keys and values that are the
next step's past come last.  A keyword that the function does not accept is a feature it
does not have.  ``NotImplementedError`` means "unsupported"; any other exception on a valid input is a failure.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self, TypeVar

from attention_conformance.impls.envelope import Envelope
from attention_conformance.impls.operators import OPERATORS, SDPA
from attention_conformance.impls.sharding import Distribution

Function = Callable[..., Any]
Error = TypeVar("Error", bound=BaseException)

DTYPES = ("float64", "float32", "float16", "bfloat16")


class Framework(StrEnum):
    """The framework whose arrays an implementation takes."""

    NUMPY = "numpy"
    TORCH = "torch"
    JAX = "jax"
    ONNXRUNTIME = "onnxruntime"


class Layout(StrEnum):
    """Axis order of q, k, v and the output in an implementation.

    The worker converts before the call and back after it, outside the timed part.
    """

    BHSD = "BHSD"
    BSHD = "BSHD"


class Profile(StrEnum):
    """(SDPA-25) Precision profile: the intermediates that are rounded to the storage dtype, from strict to loose."""

    WIDE = "wide"  # scores and weights stay in the accumulator's precision
    FUSED = "fused"  # weights are rounded before P @ V, as flash kernels do
    STORAGE = "storage"  # every intermediate array is rounded
    TF32 = "tf32"  # float32 matmul operands are rounded to 11 significant bits


#: The profiles of a dtype, from strict to loose; the others mean nothing there: only float32 is multiplied in TF32, and
#: only half precision is narrower than what scores and weights are kept in.
PROFILES: Mapping[str, tuple[Profile, ...]] = {
    "float64": (Profile.WIDE,),
    "float32": (Profile.WIDE, Profile.TF32),
    "float16": (Profile.WIDE, Profile.FUSED, Profile.STORAGE),
    "bfloat16": (Profile.WIDE, Profile.FUSED, Profile.STORAGE),
}


def checked_profile(name: str, dtype: str) -> Profile:
    """The profile with a name, where a dtype has it.

    Parameters
    ----------
    name
        Name of a profile, such as "fused".
    dtype
        Dtype, such as "float16".

    Returns
    -------
    Profile
        The profile.

    Raises
    ------
    ValueError
        For a name that is no profile's, and for a profile that means nothing for the dtype: its bounds would be wider
        than any rounding of the dtype explains.
    """
    if name not in PROFILES[dtype]:
        raise ValueError(f"profile is {str(name)!r}; expected one of {', '.join(PROFILES[dtype])} in {dtype}")
    return Profile(name)


@dataclass(frozen=True)
class Call:
    """The part of a call that a compiler may specialise on.

    ``options`` holds the plain Python keywords, ``shapes`` the shape of every argument (q, k, v) and of
    every keyword that is given as an array (in the implementation's own layout), ``dtype`` the dtype of the
    arguments.  Two equal calls may share one prepared function.
    """

    dtype: str
    device: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    options: tuple[tuple[str, Any], ...] = ()
    operator: str = SDPA.name

    @property
    def static(self) -> dict[str, Any]:
        """The plain Python keywords as a dictionary."""
        return dict(self.options)

    @property
    def arrays(self) -> tuple[str, ...]:
        """Names of the keywords that are given as arrays."""
        arguments = OPERATORS[self.operator].arguments
        return tuple(name for name, _ in self.shapes if name not in arguments)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one array, by its name.

        Parameters
        ----------
        name
            Name of an argument or a keyword.

        Returns
        -------
        tuple[int, ...]
            Lengths of its axes.
        """
        return dict(self.shapes)[name]

    def results(self) -> tuple[str, ...]:
        """Names of the results that this call returns, in order."""
        given = {name: value for name, value in self.options if value is not False}
        return OPERATORS[self.operator].returned({**given, **dict.fromkeys(self.arrays)})


def partial(function: Function, call: Call) -> Function:
    """Prepare a call in the plainest way, by binding its plain keywords; nothing is compiled, nothing is cached.

    Parameters
    ----------
    function
        Function of any framework.
    call
        Call, with its plain keywords, shapes and dtype.

    Returns
    -------
    Function
        Takes arrays by keyword.
    """
    return functools.partial(function, **call.static)


@dataclass(frozen=True)
class Implementation:
    """An implementation as the suite knows it: where its function is, and what it declares.

    Nothing here imports a framework: ``target`` (``module:function`` or ``file.py:function``) and
    ``prepare`` (``module:function``) are resolved in the worker process that runs the implementation.
    """

    name: str
    target: str
    operator: str = SDPA.name
    framework: Framework = Framework.NUMPY
    #: ``prepare(function, call)`` does the work that is done once (partial, jit, compile, export, session) and returns
    #: ``run(q, k, v, **arrays)``, which is timed.
    prepare: str = "attention_conformance.impls.contract:partial"
    layout: Layout = Layout.BHSD
    #: Axis order of past and present keys and values, where it differs from ``layout``.
    past_layout: Layout | None = None
    dtypes: tuple[str, ...] = DTYPES
    devices: tuple[str, ...] = ("cpu", "cuda")
    #: Precision profile per dtype, "float32", or per device and dtype, "cuda-float32", which comes first; a dtype that
    #: is not named has Profile.WIDE if it is float32 or float64 and Profile.STORAGE otherwise.
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    #: Keywords that its library refuses on one device and takes on another: {"cuda": ("mask", "bias")}.
    refuses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: Packages that must be installed.
    requires: tuple[str, ...] = ("numpy",)
    #: Name of the worker process that it shares; by default the first required package, or its own for a plug-in.
    worker: str = ""
    #: The file or command from which ``target`` makes the function, where it is not the function itself.
    source: str = ""
    #: Modules are imported from here first (a plug-in's own folder), "" for none.
    folder: str = ""
    summary: str = ""
    #: The process that reads the function's signature, where ``prepare`` may work without the function, which is then
    #: loaded when it is first needed; "" where it is always needed.
    deferred: str = ""
    #: Approximate processor seconds of a case, with its compilation or export: quick implementations are judged first,
    #: and the time left is estimated from it.
    case_seconds: float = 0.005
    #: The operator of the function at ``target``, where ``prepare`` makes another one of it: gradients by
    #: differentiation.
    function_of: str = ""
    #: The language of its kernels, where this process may have to interpret them (impls/interpreters.py): "triton".
    kernels: str = ""
    #: The ranks that it is spread over, if any: the other fields then describe all of them together.
    distribution: Distribution | None = None
    #: The calls that it takes, if not all.
    envelope: Envelope = field(default_factory=Envelope)

    def __hash__(self) -> int:
        return hash((self.name, self.target))

    def profile(self, dtype: str, device: str = "cpu") -> Profile:
        """The precision profile that the implementation declares for a dtype on a device, or the default one.

        Parameters
        ----------
        dtype
            Dtype, such as "float16".
        device
            Device, such as "cuda".

        Returns
        -------
        Profile
            The profile that its results are judged by.
        """
        default = Profile.WIDE if dtype in ("float32", "float64") else Profile.STORAGE
        return self.profiles.get(f"{device}-{dtype}", self.profiles.get(dtype, default))

    def missing(self) -> tuple[str, ...]:
        """The required packages that are not installed (found by name, without importing them)."""
        return tuple(name for name in self.requires if importlib.util.find_spec(name) is None)

    @property
    def layout_of_past(self) -> Layout:
        """Axis order of past and present keys and values."""
        return self.past_layout or self.layout

    @property
    def process(self) -> str:
        """Name of the worker process that runs it: its ``worker``, or else one per library and one per plug-in."""
        return self.worker or (self.name if self.folder else self.requires[0])


def as_accepted(error: Error) -> Error:
    """The same exception, marked as one that was raised after the function had returned.

    Parameters
    ----------
    error
        Exception about what was returned.

    Returns
    -------
    Error
        The exception.
    """
    error.__dict__["accepted"] = True
    return error


def was_accepted(error: BaseException) -> bool:
    """Whether an exception says that a function returned something that is not a result: it did not refuse its input.

    Parameters
    ----------
    error
        Exception of a call.

    Returns
    -------
    bool
        True for one of ``as_accepted``.
    """
    return getattr(error, "accepted", False) is True


class Returning:
    """A function that knows whether its last call returned: an exception in the context after that is not a refusal.

    Parameters
    ----------
    function
        The function.
    """

    def __init__(self, function: Function) -> None:
        functools.update_wrapper(self, function)
        self._function, self._returned = function, False

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Results of the function."""
        self._returned = False
        results = self._function(*arguments, **keywords)
        self._returned = True
        return results

    def __enter__(self) -> Self:
        self._returned = False
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and self._returned:
            as_accepted(error)


#: Beginning of the reason of a call with another value of an option than the one that a model's graph holds.
FIXED = "the model is fixed to "


class FixedOptionError(NotImplementedError):
    """A model holds another value of an option than the call has; it never promised to take other values."""

    def __init__(self, name: str, value: object) -> None:
        super().__init__(f"{FIXED}{name}={value!r}")


class InputError(Exception):
    """Something that the user named or wrote cannot be used; the text is one sentence."""


class ImplementationError(InputError):
    """A selection, path or signature that cannot be used; its text is one sentence for the user."""
