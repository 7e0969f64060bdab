"""Composition of a script: the comment at its head, imports, the call of the target, its inputs, and the check.

The room of a built-in implementation writes the call; a plug-in is imported.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import platform
import re
import sys
import textwrap
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from attention_conformance.conformance.cases import AnyCase
from attention_conformance.conformance.judging.message import inputs_line
from attention_conformance.conformance.judging.outcomes import IN_WORDS, Failure, Result
from attention_conformance.conformance.repro import declared
from attention_conformance.conformance.repro.checks import Checked, Element, check
from attention_conformance.conformance.repro.inline import CannotInline, Import, Inliner, import_lines, parsed_import
from attention_conformance.conformance.repro.inputs import (
    arrays,
    definitions,
    left_out,
    packed,
    simpler_forms,
    statements,
)
from attention_conformance.conformance.spec.clauses import clauses
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.calls import heads_inside
from attention_conformance.impls.contract import Call, Framework, Implementation
from attention_conformance.impls.foreign import program as foreign
from attention_conformance.impls.interpreters import KERNELS
from attention_conformance.impls.memory_layouts import lay_out
from attention_conformance.impls.operators import MERGE, MERGE_GRAD, OPERATORS, PAGED, VARLEN
from attention_conformance.impls.ranks_script import over_ranks
from attention_conformance.impls.script import Given, Snippet, assign_each, by_contract, forward, leaves
from attention_conformance.impls.select import builtin

#: Longest file name; systems allow 255 bytes.
NAME = 150

_NUMPY: Import = ("numpy", "", "np")

#: The room of a framework, whose module ``script`` writes calls and arrays in its terms.
_ROOMS = {
    Framework.NUMPY: "attention_conformance.impls.numpy",
    Framework.TORCH: "attention_conformance.impls.torch",
    Framework.JAX: "attention_conformance.impls.jax",
    Framework.ONNXRUNTIME: "attention_conformance.impls.onnx",
}

#: Names of plugged-in functions in a script, where they differ from the operator's.
_FUNCTIONS = {"sdpa": "attention"}

#: Names that a script uses for something else, apart from names of modules.
TAKEN = frozenset(
    {"content", "called", "expected", "wrong", "wanted", "index", "value", "bound", "got", "right", "results", "result"}
    | {"inputs", "before", "modified", "name", "shape", "dtypes", "error", "gradients", "rng", "rows", "np", "sys"}
    | {name for each in OPERATORS.values() for name in (*each.arguments, *each.arrays, *(r for r, _ in each.results))}
)

#: Functions that call a plug-in in whichever known signature it has.
_FORMS = {
    VARLEN.name: "attention_conformance.impls.packed:packed_form",
    PAGED.name: "attention_conformance.impls.packed:packed_form",
    **dict.fromkeys((MERGE.name, MERGE_GRAD.name), "attention_conformance.impls.merging:merge_form"),
}


def head(
    result: Result, target: Target, case: AnyCase, elements: Sequence[Element], versions: Mapping[str, str]
) -> list[str]:
    """The lines of the comment; ``versions`` are the versions of the packages that the script uses."""
    assert result.failure is not None
    implementation = target.implementation
    summary = f" ({implementation.summary})" if implementation.summary else ""
    lines = [f"{implementation.name}{summary}, {target.dtype} on {target.device}: {IN_WORDS[result.failure]}."]
    clause = clauses().get(result.broken or case.clauses[0])
    if clause is not None:
        lines.append(f"Clause:   {clause.id} · {clause.title}: {clause.sentence}")
    lines.append(f"Seen:     {result.reason}")
    lines += [f"Input:    {_simplified(case)}{case.why}", f"          {inputs_line(case, target.dtype)}"]
    system = [f"Python {platform.python_version()}", f"{platform.system()} {platform.machine()}"]
    lines += [f"Versions: {', '.join([*(f'{name} {text}' for name, text in versions.items()), *system])}"]
    numbers = ", with simpler numbers" if _simplified(case) else ""
    lines.append(f"Case {case.name} of attention-conformance{numbers}; {_exit(result.failure)}")
    return [commented for line in lines for commented in _comment(line)]


def _simplified(case: AnyCase) -> str:
    """A sentence or two on what is simpler than in the case; "" where nothing is."""
    numbers, without = ", ".join(simpler_forms(case)), ", ".join(left_out(case))
    said = [f"The numbers of {numbers} are simplified. "] if numbers else []
    said += [f"Without {without}. "] if without else []
    return "".join([*said, "The case's own: "]) if said else ""


def _exit(failure: Failure) -> str:
    if failure is Failure.CRASHED:
        return "dies as long as this is so, and exits with 0 once it is right."
    if failure is Failure.TIMEOUT:
        return "runs on as long as this is so, and exits with 0 once it is right."
    return "exits with 1, and with 0 once it is right."


def _comment(line: str) -> list[str]:
    hanging = " " * 10 if line[9:10] == " " and line[:1] != " " and ": " in line[:10] else ""
    hanging = " " * 10 if line.startswith(" " * 10) else hanging
    if not line:
        return ["#"]
    return textwrap.wrap(
        line, 120, initial_indent="# ", subsequent_indent=f"# {hanging}", break_long_words=False, break_on_hyphens=False
    )


# The call of a target.

#: A function that only makes one call, on one line, with plain names as its parameters.
_ONE_CALL = re.compile(r"def (\w+)\(((?:\w+, )*\w+)\):\n    return ([\w.]+\(.*\))")


def direct(written: Snippet) -> Snippet:
    """The call itself where the function around it does nothing else; otherwise the snippet unchanged."""
    found = _ONE_CALL.fullmatch(written.definitions.strip())
    if found is None or written.sources or written.after:
        return written
    name, parameters, body = found.groups()
    if name != written.function or tuple(parameters.split(", ")) != written.arguments:
        return written
    call = ast.parse(body, mode="eval").body
    if not isinstance(call, ast.Call):
        return written
    inner = [*map(ast.unparse, call.args), *(f"{each.arg}={ast.unparse(each.value)}" for each in call.keywords)]
    return replace(written, function=ast.unparse(call.func), arguments=tuple(inner), definitions="")


def snippet(target: Target, call: Call, differentiated: Sequence[str] = ()) -> Snippet:
    """The call of a target; ``differentiated`` are the arrays whose gradients are wanted.

    Raises NotImplementedError for a call that the implementation does not express.
    """
    implementation = target.implementation
    if implementation.source:
        return foreign.called(implementation, call)
    if implementation.function_of:
        return _differentiated(target, call)
    if implementation.distribution is not None:
        return over_ranks(_plugged_in(implementation, call), implementation, call, differentiated)
    known = builtin().get(implementation.name)
    if known is not None and (known.target, known.prepare) == (implementation.target, implementation.prepare):
        calls = _script(_room(implementation)).CALLS
        if implementation.name not in calls:
            raise NotImplementedError(f"no script of {implementation.name}")
        written: Snippet = calls[implementation.name](call)
        return written
    return _plugged_in(implementation, call)


def _differentiated(target: Target, call: Call) -> Snippet:
    """Gradients of a function: the call of the function, differentiated by its framework.

    A built-in uses the function of another built-in, which writes the call.
    """
    gradients, room = target.implementation, _script(_ROOMS[target.implementation.framework])
    if not hasattr(room, "differentiated"):
        raise NotImplementedError(f"{gradients.framework.value} differentiates nothing")
    of = forward(call, gradients.function_of)
    writer = getattr(room, "FUNCTIONS", {}).get(gradients.target)
    inner = writer(of) if writer else snippet(replace(target, implementation=_function(gradients)), of, leaves(call))
    written: Snippet = room.differentiated(direct(inner), call)
    return written


def _function(gradients: Implementation) -> Implementation:
    """The implementation whose function is differentiated, or the function as a plug-in."""
    wanted = (gradients.function_of, gradients.target, gradients.framework)
    same = (each for each in builtin().values() if (each.operator, each.target, each.framework) == wanted)
    alone = replace(gradients, operator=gradients.function_of, function_of="", prepare=Implementation.prepare)
    return next(same, alone)


def _script(room: str) -> Any:
    return importlib.import_module(f"{room}.script")


def _room(implementation: Implementation) -> str:
    """The folder whose module prepares the call, or makes it where nothing is prepared."""
    default = Implementation.prepare
    place = implementation.target if implementation.prepare == default else implementation.prepare
    return place.partition(":")[0].rpartition(".")[0]


def _plugged_in(implementation: Implementation, call: Call) -> Snippet:
    """A user's function, imported from the user's own place, and called as it is declared.

    Where its file does not show the parameters, it is called by keyword, as the suite calls it.
    """
    terms = _script(_ROOMS[implementation.framework]).TERMS
    place, _, name = implementation.target.rpartition(":")
    own = declared.arguments(implementation, call)
    function = name if own and name not in TAKEN else _FUNCTIONS.get(call.operator, call.operator)
    folder = [f"sys.path.insert(0, {_quoted(implementation.folder)})"] if implementation.folder else []
    if place.endswith(".py") and name.isidentifier() and _importable(Path(place), implementation.folder):
        same = "" if name == function else f" as {function}"
        lines = [*folder, f"from {Path(place).stem} import {name}{same}"]
    elif place.endswith(".py"):
        stem = _quoted(Path(place).stem)
        lines = [
            *folder,
            f"spec = importlib.util.spec_from_file_location({stem}, {_quoted(place)})",
            "module = importlib.util.module_from_spec(spec)",
            f"sys.modules[{stem}] = module",
            "spec.loader.exec_module(module)",
            f"{function} = module.{name}",
        ]
    elif place.replace(".", "_").isidentifier() and name.isidentifier():
        same = "" if name == function else f" as {function}"
        lines = [*folder, f"from {place} import {name}{same}"]
    else:
        lines = [*folder, f"{function} = importlib.import_module({_quoted(place)}).{name}"]
    spec = any("importlib.util." in line for line in lines)
    imports: tuple[str, ...] = ("import importlib.util" if spec else "import importlib", "import sys")
    if implementation.kernels:
        kernels = KERNELS[implementation.kernels]
        imports, lines = (*imports, *kernels.imports), [*kernels.script.strip().splitlines(), "", *lines]
    names = OPERATORS[call.operator].arguments
    arguments = own or (*(f"{name}={name}" for name in names), *by_contract(call)[len(names) :])
    form = _FORMS.get(call.operator)
    if own or form is None:
        return Snippet(function, arguments, terms, imports, "\n".join(lines))
    definition = "\n".join((*lines, f"{function} = {form.rpartition(':')[2]}({function})"))
    return Snippet(function, arguments, terms, imports, definition, (form,))


def _importable(file: Path, folder: str) -> bool:
    """Whether a file, and nothing else, is found by its name in its folder."""
    if not file.stem.isidentifier() or str(file.parent) != folder or file.stem in sys.stdlib_module_names:
        return False
    found = importlib.util.find_spec(file.stem) if file.stem not in sys.modules else sys.modules[file.stem].__spec__
    return found is None or found.origin == str(file)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


# The whole script.


def write(
    result: Result,
    target: Target,
    case: AnyCase,
    elements: Sequence[Element],
    versions: Mapping[str, str],
    folder: Path,
) -> Path:
    """Write the script of a failure into a folder, which is created if needed, and return the file's path.

    Raises as ``text`` does.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name(target, case)
    path.write_text(text(result, target, case, elements, versions), encoding="utf-8")
    return path


def file_name(target: Target, case: AnyCase) -> str:
    """``numpy-eager-float32-causal-square.py``: letters, digits, dots, dashes and underscores."""
    name = target.implementation.name
    short = re.sub(r"[^A-Za-z0-9._-]+", "-", name.rpartition("/")[2]).strip("-.")
    if "/" in name or len(short) > NAME // 2:  # two folders may hold functions of one name
        short = f"{short[: NAME // 2]}-{zlib.crc32(name.encode()):08x}"
    device = "" if target.device == "cpu" else f"{target.device}-"
    rest = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{device}{target.dtype}-{case.name}")
    return f"{short}-{rest[: NAME - len(short)]}.py"


def text(
    result: Result, target: Target, case: AnyCase, elements: Sequence[Element], versions: Mapping[str, str]
) -> str:
    """The script of a failed case.

    Parameters
    ----------
    result
        The failure.
    target
        The target that was called.
    case
        The case.
    elements
        The wrong elements of a result that fails by value, and () for every other failure.
    versions
        Versions of packages by name; the head of the script lists those that it uses.

    Returns
    -------
    str
        Python code, which exits with 1 where the mistake is still there.

    Raises
    ------
    ValueError
        For a result that is not a failure of a call, or that lacks its elements.
    NotImplementedError
        For a call that the implementation does not express.
    """
    if result.failure is None or (result.failure is Failure.VALUE) != bool(elements):
        raise ValueError(f"{result.case}: {result.outcome.value}, {len(elements)} wrong elements: no script")
    script = _Script(target)
    earlier = case.earlier()
    if earlier is not None and not earlier.unfit:
        script.call_before(earlier)
    written = script.call(case)
    inside = frozenset() if case.invalid else heads_inside(target.implementation)
    swapped = tuple(n for n in case.results() if n in inside and getattr(case.expected(target.dtype), n).ndim == 4)
    names = tuple(arrays(case, target.dtype))
    checked = Checked(case, target.dtype, target.device, written, names, tuple(elements), swapped)
    script.lines(check(result.failure, checked))
    wanted = dict.fromkeys((*target.implementation.requires, *written.terms.packages, "numpy"))
    known = {"numpy": np.__version__, **versions}
    used = {name: known[name] for name in wanted if name in known and (name != "ml_dtypes" or script.uses(name))}
    return script.text(head(result, target, case, elements, used))


class _Script:
    """Imports, definitions and statements, as they are added."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._inliner = Inliner()
        self._imports: set[Import] = {("sys", "", "")}
        self._blocks: list[str] = []

    def call_before(self, case: AnyCase) -> None:
        """Add the call before the one in question; its outcome does not matter."""
        try:
            written = self.call(case)
        except (NotImplementedError, TypeError):  # the implementation lacks that call's keywords
            return
        self._imports.add(("contextlib", "", ""))
        self._blocks.append(f"with contextlib.suppress(Exception):  # a call before\n{written.call(depth=1)}")

    def call(self, case: AnyCase) -> Snippet:
        """Add the definitions of a call, and its inputs as the framework's arrays, and return the call."""
        target, dtype = self._target, self._target.dtype
        heads = heads_inside(target.implementation)
        given = [_given_input(name, array, name in heads, case.memory) for name, array in arrays(case, dtype).items()]
        plain = tuple((n, v) for n, v in sorted(case.inputs(dtype).keywords.items()) if not isinstance(v, np.ndarray))
        call = Call(dtype, target.device, tuple((each.name, each.shape) for each in given), plain, case.operator)
        written = direct(snippet(target, call))
        for line in (*written.imports, *written.terms.imports):
            self._imports |= parsed_import(line)
        self._define(self._inliner.add(written.sources))
        self._define(written.definitions)
        lines = self._data(case)
        four = [each.name for each in given if each.name in heads and len(each.shape) == 4]
        if four:
            lines.append(f"{assign_each(four, 'np.ascontiguousarray(a.swapaxes(1, 2))')}  # to (B, S, H, D)")
            self._imports.add(_NUMPY)
        lines += written.terms.put(given, case.memory, target.device)
        self.lines([*lines, *written.prepared])
        return written

    def _data(self, case: AnyCase) -> list[str]:
        """The statements that make the inputs as NumPy arrays."""
        data = statements(case, self._target.dtype)
        try:
            defined = definitions(data, self._inliner)
        except CannotInline:  # the implementation has a function of the same name
            data, defined = packed(case, self._target.dtype), ""
        self._imports |= data.imports
        self._define(defined)
        return [*data.lines]

    def _define(self, block: str) -> None:
        if re.search(r"^(def|class|@)", block, re.MULTILINE):
            block = f"\n{block}\n"
        if block.strip() and block not in self._blocks:  # the call before may have defined it
            self._blocks.append(block)

    def lines(self, lines: Sequence[str]) -> None:
        """Add statements."""
        if lines:
            self._blocks.append("\n".join(lines))

    def uses(self, package: str) -> bool:
        """Whether the script imports a package."""
        return any(module == package for module, _, _ in self._all_imports())

    def _all_imports(self) -> set[Import]:
        body = "\n".join(self._blocks)
        found = self._imports | self._inliner.imports
        found |= {("ml_dtypes", "", "")} if "ml_dtypes." in body else set()
        return {each for each in found if re.search(rf"\b{re.escape(each[2] or each[1] or each[0])}\b", body)}

    def text(self, comment: Sequence[str]) -> str:
        """The whole script."""
        body = re.sub(r"\n{4,}", "\n\n\n", "\n\n".join(self._blocks)).strip("\n")
        first = next(line for line in body.splitlines() if not line.startswith("#"))
        gap = "\n\n\n" if first.startswith(("def ", "class ", "@")) else "\n\n"
        return "\n".join([*comment, "", import_lines(self._all_imports())]) + gap + body + "\n"


def _given_input(name: str, array: np.ndarray, swapped: bool, memory: str) -> Given:
    """An input as the script has it before converting it to the framework's array."""
    if swapped and array.ndim == 4:
        array = array.transpose(0, 2, 1, 3)
    laid_out = lay_out(array, memory) if memory == "expanded" else array
    repeated = (axis for axis, size in enumerate(array.shape) if size > 1 and laid_out.strides[axis] == 0)
    return Given(name, str(array.dtype), array.shape, tuple(repeated))
