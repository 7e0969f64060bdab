"""Cases: a named input with its reason, made from its own seed, its expected result and bound; the cases of sdpa."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

import ml_dtypes
import numpy as np

from attention_conformance.conformance.bounds import sdpa as bounds
from attention_conformance.conformance.cases.data import SMALL, Shape, normal
from attention_conformance.conformance.cases.store import CASES, CaseStore
from attention_conformance.conformance.spec import sdpa as reference
from attention_conformance.conformance.spec.inputs import Inputs
from attention_conformance.conformance.spec.sdpa import Expected
from attention_conformance.impls.contract import Profile
from attention_conformance.impls.operators import OPERATORS

if TYPE_CHECKING:
    from attention_conformance.conformance.judging.compare import Comparison

NUMPY_DTYPES: dict[str, np.dtype] = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}

FLOAT32 = ("float32",)
HALVES = ("float16", "bfloat16")
ALL_DTYPES = ("float32", "float64", "float16", "bfloat16")


@dataclass(frozen=True)
class Blame:
    """Clauses of an operator that a failure breaks, by the kind of failure."""

    shape: str
    accuracy: str
    #: For a case that names no clause about values.
    value: str
    #: Clause of an extra result that is wrong where the output is right, by its name.
    of_result: Mapping[str, str] = field(default_factory=dict)
    #: The same for every operator.
    dtype: str = "SDPA-27"
    modified: str = "SDPA-28"
    unrepeatable: str = "SDPA-29"
    memory: str = "SDPA-30"

    def wrong_value(self, clauses: tuple[str, ...]) -> str:
        """The clause that a wrong output breaks: the first of the case's that says what its values are.

        Parameters
        ----------
        clauses
            Clauses of the case.

        Returns
        -------
        str
            The id of a clause.
        """
        if self.memory in clauses:
            return self.memory  # the same input in another memory layout is a case of its own
        form = (self.accuracy, self.dtype, self.modified, self.unrepeatable, *self.of_result.values())
        return next((clause for clause in clauses if clause not in form), self.value)


@dataclass(frozen=True)
class AnyCase(ABC):
    """One named input; ``clauses[0]`` is the clause that is broken if the case fails by value."""

    #: The operator's name, the class of its inputs, and the clauses that failures break.
    operator: ClassVar[str]
    arguments: ClassVar[type]
    blame: ClassVar[Blame]

    name: str
    clauses: tuple[str, ...]
    #: A sentence: what this input is, and which mistake it would show.
    why: str
    shape: Any
    data: Callable[..., tuple[np.ndarray, ...]] | None = None
    #: Keywords as in the contract; a Maker is called with the case's own random numbers.
    options: Mapping[str, Any] = field(default_factory=dict)
    #: Changes the inputs after they are made (poison, mismatches).
    edit: Callable[[Any], Any] | None = None
    dtypes: tuple[str, ...] = FLOAT32
    memory: str = "contiguous"
    repeats: int = 1
    #: The input must be refused with an exception.
    invalid: bool = False
    #: The whole output is expected to be zero, or empty.
    zeros: bool = False
    #: A case to run before this one on the same prepared implementation.
    after: str = ""
    #: Conditions on its sizes wherever it runs, beyond those that its own sizes imply (cases/fit.py): "Sq > Sk, B > 1".
    needs: str = ""
    #: The case to run before this one, fitted to the same envelope.
    before: AnyCase | None = field(default=None, repr=False)
    #: Whether it is at other sizes than its own, inside an envelope.
    fitted: bool = False
    #: Reason why it cannot run inside an envelope, "" if it can.
    unfit: str = ""
    #: Reason why the case stays although no fault and no known deviation needs it (conformance/faults/kill_matrix.py).
    stays: str = ""
    #: Store of its inputs, expected results and bounds.
    store: CaseStore = field(default=CASES, repr=False, compare=False)

    @property
    def keywords(self) -> frozenset[str]:
        """The features that an implementation needs for this case."""
        return frozenset(self.options) - set(OPERATORS[self.operator].always)

    def earlier(self) -> AnyCase | None:
        """The case to run before this one, at sizes inside the same envelope; None for none."""
        from attention_conformance.conformance.cases import every_case  # which imports this module

        return every_case()[self.after] if self.after and self.before is None else self.before

    @property
    def size(self) -> tuple[int, str]:
        """Key that orders cases from small to large: elements of the arguments, then the name."""
        return self.shape.elements, self.name

    def inputs(self, dtype: str) -> Any:
        """The inputs in a dtype, always the same ones: ``arrays`` by name, and ``keywords``.

        Parameters
        ----------
        dtype
            Storage dtype: float64, float32, float16 or bfloat16.

        Returns
        -------
        Any
            Inputs, of the type that the operator has.
        """
        return self.store.inputs(self, dtype)

    def expected(self, dtype: str) -> Any:
        """Results of the reference for the inputs, as attributes.

        Parameters
        ----------
        dtype
            Storage dtype: float64, float32, float16 or bfloat16.

        Returns
        -------
        Any
            Results as attributes, float64.

        Raises
        ------
        InvalidInput
            For invalid inputs.
        """
        return self.store.expected(self, dtype)

    def bound(self, dtype: str, profile: Profile) -> Any:
        """The error bound for the inputs under a profile, results as attributes.

        Parameters
        ----------
        dtype
            Storage dtype: float64, float32, float16 or bfloat16.
        profile
            The intermediates that are rounded to it.

        Returns
        -------
        Any
            |error|, absolute, in the shapes of the results.
        """
        return self.store.bound(self, dtype, profile)

    def make_inputs(self, dtype: str) -> Any:
        """The inputs, made from the case's own seed.

        Parameters
        ----------
        dtype
            Storage dtype: float64, float32, float16 or bfloat16.

        Returns
        -------
        Any
            Inputs, of the type that the operator has.
        """
        inputs = self.before_edit(dtype)
        return inputs if self.edit is None else self.edit(inputs)

    def before_edit(self, dtype: str) -> Any:
        """The inputs before they are edited.

        Parameters
        ----------
        dtype
            Storage dtype: float64, float32, float16 or bfloat16.

        Returns
        -------
        Any
            Inputs, of the type that the operator has.
        """
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        target = NUMPY_DTYPES[dtype]
        with np.errstate(all="ignore"):
            arrays = [a.astype(target) for a in self.draw(rng)]
            keywords = {n: v(rng, self.shape, target) if callable(v) else v for n, v in self.options.items()}
        return self.arguments(*arrays, *self.tables(), keywords)

    def tables(self) -> tuple[np.ndarray, ...]:
        """The arguments after the drawn ones, which are whole numbers."""
        return ()

    def draw(self, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """The arguments in float64.

        Parameters
        ----------
        rng
            Seeded by the case.

        Returns
        -------
        tuple[np.ndarray, ...]
            Arrays in the order of the operator's arguments.
        """
        raise NotImplementedError

    @abstractmethod
    def make_expected(self, inputs: Any) -> Any:
        """Results of the reference.

        Parameters
        ----------
        inputs
            Inputs as ``make_inputs`` gives them.

        Returns
        -------
        Any
            Results as attributes, float64.

        Raises
        ------
        InvalidInput
            For invalid inputs.
        """

    @abstractmethod
    def make_bound(self, inputs: Any, expected: Any, dtype: str, profile: Profile) -> Any:
        """The error bound for inputs with the reference ``expected``, under a profile.

        Parameters
        ----------
        inputs
            Inputs as ``make_inputs`` gives them.
        expected
            Expected results as ``make_expected`` gives them.
        dtype
            Storage dtype: float64, float32, float16 or bfloat16.
        profile
            The intermediates that are rounded to it.

        Returns
        -------
        Any
            |error|, absolute, in the shapes of the results.
        """

    @abstractmethod
    def axes(self, result: str) -> tuple[str, ...]:
        """Names of the axes of a result, for "rows 1–4".

        Parameters
        ----------
        result
            Name of the result, such as "output".

        Returns
        -------
        tuple[str, ...]
            One name for each axis.
        """

    def located(self, comparison: Comparison) -> Comparison:
        """A comparison with indices into the whole result, where only a part of it is compared.

        Parameters
        ----------
        comparison
            Comparison of a part of a result.

        Returns
        -------
        Comparison
            The same with other indices.
        """
        return comparison

    def results(self) -> tuple[str, ...]:
        """Names of the requested results, in order."""
        return OPERATORS[self.operator].returned({n for n, value in self.options.items() if value is not False})

    @classmethod
    def of(cls, name: str, clauses: str, why: str, shape: Any, options: Mapping[str, Any]) -> Self:
        """A case, with its clauses as one text and its other fields among its options.

        Parameters
        ----------
        name
            Name of the case, in kebab case.
        clauses
            Ids, separated by spaces.
        why
            The mistake that it should catch.
        shape
            Sizes, of the operator's type.
        options
            The other fields.

        Returns
        -------
        Self
            The case.
        """
        fields = {key: value for key, value in options.items() if key in cls.__dataclass_fields__}
        rest = {key: value for key, value in options.items() if key not in fields}
        return cls(name, tuple(clauses.split()), why, shape, options=rest, **fields)

    def __hash__(self) -> int:
        return hash(self.name)


_AXES = {
    "output": ("batch", "head", "row", "column"),
    "weights": ("batch", "head", "row", "key"),
    "lse": ("batch", "head", "row"),
    "present_key": ("batch", "head", "key", "column"),
    "present_value": ("batch", "head", "key", "column"),
}


@dataclass(frozen=True)
class Case(AnyCase):
    """A case of sdpa."""

    operator: ClassVar[str] = "sdpa"
    arguments: ClassVar[type] = Inputs
    blame: ClassVar[Blame] = Blame(
        "SDPA-1",
        accuracy="SDPA-25",
        value="SDPA-16",
        of_result={"weights": "SDPA-18", "lse": "SDPA-19", "present_key": "DEC-3", "present_value": "DEC-3"},
    )
    shape: Shape = SMALL
    #: Number of past keys and values among the Sk of ``shape``; None for a call without a past.
    past: int | None = None

    @property
    def keywords(self) -> frozenset[str]:
        """The features that an implementation needs for this case."""
        return super().keywords | (frozenset() if self.past is None else {"past_key", "past_value"})

    def results(self) -> tuple[str, ...]:
        """Names of the requested results, in order."""
        asked = {name for name, value in self.options.items() if value is not False}
        return OPERATORS[self.operator].returned(asked | (self.keywords & {"past_key"}))

    def draw(self, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Q, k and v in float64, past and new keys together."""
        return (self.data or normal(1.0))(rng, self.shape)

    def before_edit(self, dtype: str) -> Inputs:
        """The inputs before they are edited, split into past and new keys and values."""
        inputs: Inputs = super().before_edit(dtype)
        if self.past is None:
            return inputs
        (past_key, k), (past_value, v) = (np.split(a, [self.past], axis=2) for a in (inputs.k, inputs.v))
        past = {"past_key": past_key.copy(), "past_value": past_value.copy()}
        return Inputs(inputs.q, k.copy(), v.copy(), inputs.keywords | past)

    def make_expected(self, inputs: Inputs) -> Expected:
        """Results of the reference.  Raises InvalidInput for invalid inputs."""
        return reference_of(inputs)

    def make_bound(self, inputs: Inputs, expected: Expected, dtype: str, profile: Profile) -> bounds.Bound:
        """The error bound for inputs under a profile."""
        return bound_of(inputs, expected, dtype, profile)

    def axes(self, result: str) -> tuple[str, ...]:
        """Names of the axes of a result."""
        return _AXES[result]

    def __hash__(self) -> int:
        return hash(self.name)


def reference_of(inputs: Inputs) -> Expected:
    """Results of the reference.

    Parameters
    ----------
    inputs
        Q (B, Hq, Sq, D), k (B, Hkv, Sk, D), v (B, Hkv, Sk, Dv), and the options that are given.

    Returns
    -------
    Expected
        Output (B, Hq, Sq, Dv), lse (B, Hq, Sq) and the intermediate results, float64.

    Raises
    ------
    InvalidInput
        For invalid inputs.
    """
    options = {name: value for name, value in inputs.keywords.items() if not name.startswith("return_")}
    return reference.sdpa(inputs.q, inputs.k, inputs.v, **options)


def bound_of(inputs: Inputs, expected: Expected, dtype: str, profile: Profile) -> bounds.Bound:
    """The error bound for inputs with the reference ``expected``, under a profile.

    Parameters
    ----------
    inputs
        Q (B, Hq, Sq, D), k (B, Hkv, Sk, D), v (B, Hkv, Sk, Dv), and the options that are given.
    expected
        The reference's results.
    dtype
        Storage dtype.
    profile
        The intermediates that are rounded to it.

    Returns
    -------
    bounds.Bound
        |error|, absolute: output (B, Hq, Sq, Dv) and lse (B, Hq, Sq).
    """
    return bounds.bound(expected, bounds.Options.of(inputs.keywords), dtype, profile)


def case(name: str, clauses: str, why: str, shape: Shape = SMALL, **rest: Any) -> Case:
    """A case from its clauses as one text and its options as keywords.

    Parameters
    ----------
    name
        Name of the case, in kebab case.
    clauses
        Ids, separated by spaces, first the one that it tests.
    why
        The mistake that it should catch.
    shape
        B, Hq, Hkv, Sq, Sk, D and Dv.
    rest
        Options and data, as ``Case`` has them.

    Returns
    -------
    Case
        The case.
    """
    return Case.of(name, clauses, why, shape, rest)
