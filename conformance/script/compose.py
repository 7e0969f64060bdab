"""The script of a failed case, put together: head, imports, the call, the inputs, the check."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from conformance.cases import AnyCase, every_case
from conformance.outcomes import Failure, Result
from conformance.script.calls import snippet
from conformance.script.checks import Checked, check
from conformance.script.elements import Element
from conformance.script.head import head
from conformance.script.inline import CannotInline, Import, Inliner, import_lines, parsed_import
from conformance.script.inputs import arrays, definitions, packed, statements
from conformance.targets import Target
from impls.calls import heads_inside
from impls.contract import Call
from impls.memory import lay_out
from impls.script import Given, Snippet, together

#: Longest file name; systems allow 255 bytes.
NAME = 150

_NUMPY: Import = ("numpy", "", "np")


def write(
    result: Result,
    target: Target,
    case: AnyCase,
    elements: Sequence[Element],
    versions: Mapping[str, str],
    folder: Path,
) -> Path:
    """Write the script of a failure into a folder, which is made if need be; the file's path.

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
    """The script.  ``elements`` are the wrong elements of a wrong result, and () for every other failure.

    Raises ValueError for a result that is no failure of a call (or that lacks its elements), NotImplementedError for
    a call that the implementation does not express.
    """
    if result.failure is None or (result.failure is Failure.VALUE) != bool(elements):
        raise ValueError(f"{result.case}: {result.outcome.value}, {len(elements)} wrong elements: no script")
    script = _Script(target)
    if case.after:
        script.call_before(every_case()[case.after])
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
        """The call that comes before the one in question; what becomes of it does not matter."""
        try:
            written = self.call(case)
        except (NotImplementedError, TypeError):  # it does not have the keywords of that call
            return
        self._imports.add(("contextlib", "", ""))
        self._blocks.append(f"with contextlib.suppress(Exception):  # a call before\n{written.call(depth=1)}")

    def call(self, case: AnyCase) -> Snippet:
        """What a call needs: its definitions, and its inputs in the framework's arrays."""
        target, dtype = self._target, self._target.dtype
        heads = heads_inside(target.implementation)
        given = [_given(name, array, name in heads, case.memory) for name, array in arrays(case, dtype).items()]
        plain = tuple((n, v) for n, v in sorted(case.inputs(dtype).keywords.items()) if not isinstance(v, np.ndarray))
        call = Call(dtype, target.device, tuple((each.name, each.shape) for each in given), plain, case.operator)
        written = snippet(target, call)
        for line in (*written.imports, *written.terms.imports):
            self._imports |= parsed_import(line)
        self._define(self._inliner.add(written.sources))
        self._define(written.definitions)
        self._data(case)
        lines = []
        four = [each.name for each in given if each.name in heads and len(each.shape) == 4]
        if four:
            lines.append(f"{together(four, 'np.ascontiguousarray(a.swapaxes(1, 2))')}  # to (B, S, H, D)")
            self._imports.add(_NUMPY)
        lines += written.terms.put(given, case.memory, target.device)
        self.lines(lines)
        return written

    def _data(self, case: AnyCase) -> None:
        """The inputs as NumPy arrays."""
        data = statements(case, self._target.dtype)
        try:
            defined = definitions(data, self._inliner)
        except CannotInline:  # the implementation has a function of the same name
            data, defined = packed(case, self._target.dtype), ""
        self._imports |= data.imports
        self._define(defined)
        self.lines(data.lines)

    def _define(self, block: str) -> None:
        block = f"\n{block}\n"
        if block.strip() and block not in self._blocks:  # the call before may have defined the same
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


def _given(name: str, array: np.ndarray, swapped: bool, memory: str) -> Given:
    """An input as the script has it before it becomes an array of the framework."""
    if swapped and array.ndim == 4:
        array = array.transpose(0, 2, 1, 3)
    laid_out = lay_out(array, memory) if memory == "expanded" else array
    repeated = (axis for axis, size in enumerate(array.shape) if size > 1 and laid_out.strides[axis] == 0)
    return Given(name, str(array.dtype), array.shape, tuple(repeated))
