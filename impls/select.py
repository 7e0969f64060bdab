"""Selection of implementations by what ``--impl`` names: built-ins, entry points, files and modules."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import importlib.metadata
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attention_conformance.impls import envelope, jax, numpy, onnx, ranks, torch
from attention_conformance.impls.contract import (
    DTYPES,
    Framework,
    Implementation,
    ImplementationError,
    Layout,
    checked_profile,
)
from attention_conformance.impls.envelope import Envelope
from attention_conformance.impls.foreign.text import foreign
from attention_conformance.impls.frameworks import SeveralFrameworksError, framework_in
from attention_conformance.impls.interpreters import KERNELS
from attention_conformance.impls.loading import nearest
from attention_conformance.impls.operators import GRADIENTS, OPERATORS

#: The group in which packages register implementations: name = "module:function" or "module:function@framework".
ENTRY_POINTS = "attention_conformance.impls"

#: Values of ``@framework``, and the packages that each needs.
_REQUIRES = {
    Framework.NUMPY: ("numpy",),
    Framework.TORCH: ("torch",),
    Framework.JAX: ("jax",),
    Framework.ONNXRUNTIME: ("onnxruntime",),
}
#: Preparation of a plug-in's call where binding its options is not enough: JAX needs its 64-bit types enabled.
_PREPARE = {Framework.JAX: "attention_conformance.impls.jax.prepare:eager"}
#: Gradients of a plug-in, computed from its function of sdpa or mha (``+gradients``).
_GRADIENTS = {
    Framework.TORCH: "attention_conformance.impls.torch.gradients:prepare",
    Framework.JAX: "attention_conformance.impls.jax.gradients:prepare",
}
_TARGET = re.compile(
    r"^(?P<place>.+\.py|[^:@]+):(?P<name>[A-Za-z_][\w.]*)(?:@(?P<framework>\w*))?(?P<gradients>\+gradients)?$"
)


@functools.cache
def builtin() -> dict[str, Implementation]:
    """The built-in implementations by name, whether or not their packages are installed.

    Returns
    -------
    dict[str, Implementation]
        Records by name.
    """
    tables = (numpy, torch, jax, onnx)
    return {each.name: each for table in tables for each in table.IMPLEMENTATIONS}


def registered() -> dict[str, Implementation]:
    """The implementations that installed packages register, by name.

    Returns
    -------
    dict[str, Implementation]
        Records by name.
    """
    found = {}
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        try:
            found[entry.name] = plug_in(entry.value, name=entry.name)
        except SeveralFrameworksError:  # a package's function that is not asked for ends no run
            found[entry.name] = plug_in(f"{entry.value}@{Framework.NUMPY}", name=entry.name)
    return found


def select(patterns: Sequence[str] = ()) -> tuple[Implementation, ...]:
    """Select implementations by what ``--impl`` takes.

    Parameters
    ----------
    patterns
        Patterns: each is a name, a glob over names, ``path.py:function[@framework][+gradients]``,
        ``package.module:function[@framework][+gradients]``, ``model.onnx[:name=ours,…]``, or a program's command line.

    Returns
    -------
    tuple of Implementation
        Each implementation once, in order; all built-in and registered ones without patterns.

    Raises
    ------
    ImplementationError
        For a pattern that names nothing.
    """
    known = {**builtin(), **registered()}
    if not patterns:
        return tuple(known.values())
    chosen: dict[str, Implementation] = {}
    for pattern in patterns:
        plugged = foreign(pattern)
        if plugged is None and ":" in pattern:
            plugged = plug_in(pattern)
        if plugged is not None:
            chosen.setdefault(pattern, plugged)
            continue
        names = fnmatch.filter(known, pattern)
        if not names:
            raise ImplementationError(_unknown(pattern, known))
        chosen.update((name, known[name]) for name in names if name not in chosen)
    return tuple(chosen.values())


def plug_in(text: str, name: str = "") -> Implementation:
    """The record of a function named by its file or module.

    Parameters
    ----------
    text
        ``path.py:function`` or ``package.module:function``, and ``@framework``; without it, the framework that the
        function's source names.
    name
        Name that it is called by in results; "" for its own.

    Returns
    -------
    Implementation
        The record.

    Raises
    ------
    ImplementationError
        If the text is malformed.
    """
    match = _TARGET.match(text)
    if match is None:
        raise ImplementationError(
            f"{text!r} is not path.py:function[@framework][+gradients]"
            " or package.module:function[@framework][+gradients]"
        )
    place = match["place"]
    folder = os.getcwd()
    if place.endswith(".py"):
        path = Path(place).resolve()
        if not path.is_file():
            raise ImplementationError(f"--impl {text}: no file {place}, looked for at {path}")
        place, folder = str(path), str(path.parent)
    said = match["framework"] or framework_in(place, match["name"], folder)
    kernels = said if said in KERNELS else ""
    framework = KERNELS[kernels].framework if kernels else _framework(said)
    implementation = Implementation(
        name=name or text,
        target=f"{place}:{match['name']}",
        framework=framework,
        prepare=_PREPARE.get(framework, "attention_conformance.impls.contract:partial"),
        requires=KERNELS[kernels].requires if kernels else _REQUIRES[framework],
        kernels=kernels,
        folder=folder,
        summary="plugged in",
    )
    return _differentiated(implementation) if match["gradients"] else implementation


def _differentiated(plugged: Implementation) -> Implementation:
    """The gradients of a plug-in, by the framework's differentiation.  Raises ImplementationError if it has none.

    They are of sdpa until the function is imported and declares another operator (``with_attributes``).
    """
    if plugged.framework not in _GRADIENTS:
        raise ImplementationError(
            f"{plugged.name}: {plugged.framework.value} does not differentiate; plug in the gradients themselves,"
            ' as a function with the attribute operator = "sdpa_grad" or "mha_grad"'
        )
    prepare = _GRADIENTS[plugged.framework]
    return dataclasses.replace(plugged, operator="sdpa_grad", function_of="sdpa", prepare=prepare)


def with_attributes(implementation: Implementation, attributes: dict[str, Any]) -> Implementation:
    """The record of a plug-in with what its function declares (``impls.loading.ATTRIBUTES``).

    Parameters
    ----------
    implementation
        The record of a plug-in.
    attributes
        Values by the names in ``ATTRIBUTES``.

    Returns
    -------
    Implementation
        The record with them.

    Raises
    ------
    ImplementationError
        If a value is not one that the contract knows.
    """
    changes: dict[str, Any] = {}
    try:
        if "dtypes" in attributes:
            if isinstance(attributes["dtypes"], str):  # its letters are not dtypes
                raise ValueError(f"dtypes is {attributes['dtypes']!r}, expected a tuple of names")
            changes["dtypes"] = tuple(attributes["dtypes"])
            unknown = set(changes["dtypes"]) - set(DTYPES)
            if unknown:
                raise ValueError(f"{sorted(unknown)[0]!r} is not one of {', '.join(DTYPES)}")
        if "profiles" in attributes:
            dtypes = {key: key.removeprefix("cpu-").removeprefix("cuda-") for key in dict(attributes["profiles"])}
            unknown = set(dtypes.values()) - set(DTYPES)
            if unknown:
                raise ValueError(f"{sorted(unknown)[0]!r} in profiles is not one of {', '.join(DTYPES)}")
            changes["profiles"] = {
                key: checked_profile(value, dtypes[key]) for key, value in dict(attributes["profiles"]).items()
            }
        if "operator" in attributes:
            changes |= _of_operator(implementation, attributes["operator"])
        if "layout" in attributes:
            changes["layout"] = Layout(attributes["layout"])
        limits = {name: value for name, value in attributes.items() if name in envelope.ATTRIBUTES}
        if limits:
            operator = OPERATORS[changes.get("operator", implementation.operator)]
            model = implementation.source and implementation.framework is Framework.ONNXRUNTIME
            source = "static axes" if model else "declared"
            changes["envelope"] = dataclasses.replace(Envelope.declared(limits, operator.keywords), source=source)
        changed = dataclasses.replace(implementation, **changes)
        return ranks.distributed(changed, attributes) if "ranks" in attributes else changed
    except (TypeError, ValueError) as error:
        raise ImplementationError(f"{implementation.name}: its attributes are not understood: {error}") from None


def _of_operator(implementation: Implementation, name: str) -> dict[str, str]:
    """The fields for a function of the named operator, or for its gradients where they are meant.

    Raises ValueError for an operator whose gradients are not an operator.
    """
    if not implementation.function_of:
        return {"operator": name}
    if name not in GRADIENTS:
        raise ValueError(f"there is no operator for the gradients of {name!r}, only of {', '.join(GRADIENTS)}")
    return {"operator": GRADIENTS[name], "function_of": name}


def _framework(text: str) -> Framework:
    try:
        return Framework(text)
    except ValueError:
        names = [*(f.value for f in Framework), *KERNELS]
        raise ImplementationError(f"unknown framework {text!r}{nearest(text, names)}") from None


def _unknown(pattern: str, known: dict[str, Implementation]) -> str:
    hint = nearest(pattern, known)
    if Path(pattern).suffix == ".py":
        hint = f"; a file needs the name of its function: {pattern}:attention"
    return f"unknown implementation {pattern!r}{hint}"
