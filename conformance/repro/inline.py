"""Source of this package's functions with everything that they use, so that a script does not import the package.

Works on the text only: a module is parsed and compiled, and never imported, so no framework is needed.  Annotations
of functions are left out, and with them the names that only they use; comments and docstrings stay.
"""

from __future__ import annotations

import ast
import builtins
import dis
import functools
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

from attention_conformance.impls.script import WIDTH

#: The package whose sources are written out; other packages are imported.
OWN = __name__.partition(".")[0]

#: The header of a function with its arguments on lines of their own.
_HEADER = re.compile(r"^(?P<start> *def \w+)\(\n(?P<arguments>(?: +[^\n]*\n)+?) *\):$", re.MULTILINE)

#: Instructions that take a name from the module; annotations use the last one, from Python 3.14 on.
_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")

#: An import: ``import module as name`` (member ""), or ``from module import member as name``.
Import = tuple[str, str, str]


class CannotInline(Exception):
    """A name whose source cannot be written out by itself; the text says which."""


@dataclass(frozen=True)
class _Module:
    """A parsed module: its source, and its top-level statements by the names that they define."""

    source: bytes
    tree: ast.Module
    statements: dict[str, ast.stmt]


class Inliner:
    """Collects definitions, each once and after what it uses, and the imports that they need."""

    def __init__(self) -> None:
        self.imports: set[Import] = set()
        #: The module of every name that was added.
        self._from: dict[str, str] = {}

    def add(self, roots: Iterable[str]) -> str:
        """The source of functions (``module:function``) and of all they use that was not added before.

        Raises CannotInline for a name that is not defined at the top level of its module, and for a name that two
        modules define.
        """
        blocks: list[tuple[ast.stmt, str]] = []
        before = set(self.imports), dict(self._from)
        try:
            for root in roots:
                module, _, name = root.partition(":")
                self._add(module, name, blocks)
        except CannotInline:
            self.imports, self._from = before
            raise
        return joined(blocks)

    def _add(self, module: str, name: str, blocks: list[tuple[ast.stmt, str]]) -> None:
        parsed = _parsed(module)
        statement = parsed.statements.get(name)
        if statement is None:
            if hasattr(builtins, name):
                return
            raise CannotInline(f"{module} does not define {name} at its top level")
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            self._import(statement, name, blocks)
            return
        if name in self._from:
            if self._from[name] != module:
                raise CannotInline(f"{name} is defined by {self._from[name]} and by {module}")
            return
        self._from[name] = module
        uses, text = _definition(module, name)
        for used in uses:
            self._add(module, used, blocks)
        blocks.append((statement, text))

    def _import(self, statement: ast.Import | ast.ImportFrom, name: str, blocks: list[tuple[ast.stmt, str]]) -> None:
        alias = next(a for a in statement.names if (a.asname or a.name) == name)
        if isinstance(statement, ast.Import):
            self.imports.add((alias.name, "", alias.asname or ""))
            return
        source = statement.module or ""
        if source.partition(".")[0] != OWN:
            self.imports.add((source, alias.name, alias.asname or ""))
        elif alias.asname:
            raise CannotInline(f"{source}.{alias.name} is imported under another name")
        else:
            self._add(source, alias.name, blocks)


def lambda_at(module: str, line: int) -> tuple[str, str, list[str]]:
    """The lambda that begins on a line of a module: its arguments and its body as text, and the names that it uses.

    Raises CannotInline unless there is exactly one.
    """
    parsed = _parsed(module)
    found = [node for node in ast.walk(parsed.tree) if isinstance(node, ast.Lambda) and node.lineno == line]
    if len(found) != 1:
        raise CannotInline(f"{module}, line {line}: {len(found)} lambdas")
    source = parsed.source.decode()
    arguments, _, body = (ast.get_source_segment(source, found[0]) or "").partition(":")
    used = _globals(compile(ast.Expression(found[0]), module, "eval", dont_inherit=True))
    return arguments.removeprefix("lambda").strip(), body.strip(), list(dict.fromkeys(used))


def joined(blocks: Sequence[tuple[ast.stmt, str]]) -> str:
    """Definitions two blank lines apart, with consecutive plain assignments on adjacent lines."""
    text, last = "", None
    for statement, block in blocks:
        plain = isinstance(statement, (ast.Assign, ast.AnnAssign))
        gap = "" if last is None else "\n" if plain and last else "\n\n\n"
        text, last = text + gap + block, plain
    return text


def parsed_import(line: str) -> set[Import]:
    """The imports that a line of source makes."""
    found: set[Import] = set()
    for statement in ast.parse(line).body:
        if isinstance(statement, ast.Import):
            found |= {(alias.name, "", alias.asname or "") for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom):
            found |= {(statement.module or "", alias.name, alias.asname or "") for alias in statement.names}
    return found


def import_lines(imports: Iterable[Import]) -> str:
    """Import lines for the top of a file: the standard library's, a blank line, the others."""
    modules: dict[str, list[str]] = {}
    lines: list[str] = []
    for module, member, name in sorted(set(imports)):
        renamed = f" as {name}" if name else ""
        if member:
            modules.setdefault(module, []).append(f"{member}{renamed}")
        else:
            lines.append(f"import {module}{renamed}")
    lines += [f"from {module} import {', '.join(members)}" for module, members in modules.items()]
    standard = [line for line in lines if line.split()[1].split(".")[0] in sys.stdlib_module_names]
    return "\n\n".join("\n".join(group) for group in (standard, [x for x in lines if x not in standard]) if group)


@functools.cache
def _parsed(module: str) -> _Module:
    spec = importlib.util.find_spec(module)  # imports its parent packages, which are only tables
    if spec is None or spec.origin is None:
        raise CannotInline(f"{module} has no source")
    source = Path(spec.origin).read_bytes()
    tree = ast.parse(source)
    statements = {name: statement for statement in tree.body for name in _defined(statement)}
    return _Module(source, tree, statements)


@functools.cache
def _definition(module: str, name: str) -> tuple[tuple[str, ...], str]:
    """The names that a definition uses, in order, and its source."""
    parsed = _parsed(module)
    text = _text(parsed.source, parsed.statements[name])
    return tuple(dict.fromkeys(_globals(compile(text, module, "exec", dont_inherit=True)))), text


def _defined(statement: ast.stmt) -> list[str]:
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [statement.name]
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return [alias.asname or alias.name for alias in statement.names]
    if isinstance(statement, (ast.Assign, ast.AnnAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return [target.id for target in targets if isinstance(target, ast.Name)]
    return []


def _globals(code: CodeType) -> Iterator[str]:
    """The names that compiled code takes from its module when it is executed or called, in that order."""
    instructions = list(dis.get_instructions(code))
    own = {each.argval for each in instructions if each.opname == "STORE_NAME"}
    for each in instructions:
        if each.opname in _LOADS and each.argval not in own:
            yield each.argval
        elif isinstance(each.argval, CodeType):
            yield from _globals(each.argval)


# Text.


def _text(source: bytes, statement: ast.stmt) -> str:
    """The statement's text in its module, with the comments above it and without annotations of functions."""
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))

    def at(line: int, column: int) -> int:
        return starts[line - 1] + column

    decorators = getattr(statement, "decorator_list", [])
    first = min([statement.lineno, *(each.lineno for each in decorators)])
    while first > 1 and lines[first - 2].startswith(b"#"):
        first -= 1
    begin, end = starts[first - 1], at(statement.end_lineno or first, statement.end_col_offset or 0)
    for start, stop, text in sorted(_edits(source, statement, at), reverse=True):
        source = source[:start] + text + source[stop:]
        end += len(text) - (stop - start)
    return _HEADER.sub(_one_line, source[begin:end].decode())


def _one_line(header: re.Match[str]) -> str:
    """The header of a function on one line, if it fits without its annotations."""
    arguments = ", ".join(line.strip().rstrip(",") for line in header["arguments"].splitlines())
    line = f"{header['start']}({arguments}):"
    return line if len(line) <= WIDTH else header[0]


def _edits(source: bytes, statement: ast.stmt, at: Callable[[int, int], int]) -> Iterator[tuple[int, int, bytes]]:
    """Replacements, as (start, stop, replacement), that remove the annotations of functions."""

    def start(node: ast.expr | ast.arg) -> int:
        return at(node.lineno, node.col_offset)

    def stop(node: ast.expr | ast.arg) -> int:
        return at(node.end_lineno or 0, node.end_col_offset or 0)

    in_class = {id(each) for node in ast.walk(statement) if isinstance(node, ast.ClassDef) for each in node.body}
    for node in ast.walk(statement):
        if isinstance(node, ast.AnnAssign) and id(node) not in in_class and node.value is not None:
            yield stop(node.target), stop(node.annotation), b""
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        a = node.args
        for each in (*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))):
            if each.annotation is not None:
                yield start(each) + len(each.arg.encode()), stop(each.annotation), b""
        positional = [*a.posonlyargs, *a.args]
        pairs = [*zip(positional[len(positional) - len(a.defaults) :], a.defaults, strict=True)]
        pairs += [(x, d) for x, d in zip(a.kwonlyargs, a.kw_defaults, strict=True) if d is not None]
        for each, default in pairs:
            if each.annotation is not None:
                yield stop(each.annotation), start(default), b"="
        if node.returns is not None:
            arrow = source.rindex(b"->", 0, start(node.returns))
            yield len(source[:arrow].rstrip()), stop(node.returns), b""
