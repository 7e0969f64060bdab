"""Docstrings: each names its thing first, and functions that other rooms use have numpydoc's sections."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "attention_conformance"
ROOMS = ("api", "impls", "conformance", "bench", "reports")

#: First words of a docstring, or of its text on a parameter, that describe a thing without naming it.
UNNAMED = ("How", "Its", "Of", "That of", "Their", "Those", "What", "Which", "Who", "Why")

#: Folders whose docstrings continue a title (of a fault, or of a way to call a package).
TITLED = ("conformance/faults", "impls/gallery")


def room_of(module: str) -> str:
    """The room of a module whose name begins with it."""
    return module.partition(".")[0]


def defined(trees: Mapping[str, ast.Module], module: str, name: str) -> tuple[str, ast.stmt] | None:
    """The module and node that define a name of a module, through modules that only re-export it."""
    tree = trees.get(module, ast.Module([], []))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return module, node
    for each in ast.walk(tree):
        if isinstance(each, ast.ImportFrom) and dotted(each.module) != module:
            names = {one.asname or one.name: one.name for one in each.names}
            if name in names:
                return defined(trees, dotted(each.module), names[name])
    return None


def dotted(module: str | None) -> str:
    """A module's name from its room on; modules at the top of the package belong to the room api."""
    inside = str(module).removeprefix(PACKAGE).removeprefix(".")
    return inside if room_of(inside) in ROOMS else f"api.{inside}".removesuffix(".")


def imported(tree: ast.Module, trees: Mapping[str, ast.Module]) -> Iterator[tuple[str, str]]:
    """Modules and names that a module uses from others of the suite: by name, and as attributes of a module."""
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            for each in node.names:
                within = f"{dotted(node.module)}.{each.name}" if node.module != PACKAGE else dotted(each.name)
                if within in trees:
                    modules[each.asname or each.name] = within
                yield dotted(node.module), each.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            yield modules[node.value.id], node.attr


def lacking(function: ast.FunctionDef) -> set[str]:
    """The sections that a function's docstring must have and lacks."""
    text = ast.get_docstring(function) or ""
    given = function.args
    raised = [node for node in ast.walk(function) if isinstance(node, ast.Raise)]
    returned = ast.unparse(function.returns) if function.returns else "None"
    needed = {
        "Parameters": bool(given.posonlyargs or given.args or given.kwonlyargs or given.vararg or given.kwarg),
        "Returns": returned != "None" and f"Yields\n{'-' * 6}" not in text,
        "Raises": bool(raised),
    }
    return {name for name, wanted in needed.items() if wanted and f"{name}\n{'-' * len(name)}" not in text}


def short(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """The functions that another room imports, or the package exports, with the sections that they lack."""
    trees = {name: ast.parse(source) for name, source in sources.items()}
    found = {}
    for module, tree in trees.items():
        for source, name in imported(tree, trees):
            where = defined(trees, source, name)
            if where and isinstance(where[1], ast.FunctionDef) and room_of(where[0]) != room_of(module):
                found[f"{where[0]}.{where[1].name}"] = lacking(where[1])
    return {name: sections for name, sections in found.items() if sections}


def unnamed(source: str) -> list[str]:
    """Summaries, and first lines on parameters and results, that do not name their thing."""
    texts = [
        ast.get_docstring(node) or ""
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
    ]
    begins = tuple(f"{word} " for word in UNNAMED)
    found = [text.split("\n")[0] for text in texts if text.startswith(begins)]
    for text in texts:
        section = ""
        for above, line in itertools.pairwise(text.split("\n")):
            section = above if line and line == len(above) * "-" else section
            entry = above and not above.startswith(" ") and line.startswith("    ")
            if section in ("Parameters", "Returns", "Yields") and entry and line.strip().startswith(begins):
                found.append(line.strip())
    return found


def test_a_docstring_names_its_thing_first() -> None:
    """No docstring needs the signature to be understood, as "Of the run" would."""
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*.py") if "tests" not in path.parts]
    files = [path for path in files if not path.relative_to(ROOT).as_posix().startswith(TITLED)]
    found = {path.relative_to(ROOT).as_posix(): unnamed(path.read_text(encoding="utf-8")) for path in files}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_a_docstring_that_names_nothing_is_found() -> None:
    """A first line without a name is found in summaries, parameters and results, but not under Raises."""
    source = '''
class A:
    """Of the suite."""

    def f(self):
        """The results.

        Parameters
        ----------
        run
            Of the run.
        case
            The case.
            Of a second line nothing is read.

        Returns
        -------
        int
            How many.

        Raises
        ------
        ValueError
            Of anything.
        """
'''
    assert unnamed(source) == ["Of the suite.", "Of the run.", "How many."]


def test_functions_that_a_room_offers_have_their_sections() -> None:
    """Functions that another room uses document their parameters, results and errors."""
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*.py") if "tests" not in path.parts]
    names = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in files}
    assert short({name: path.read_text(encoding="utf-8") for path, name in names.items()}) == {}


def test_a_function_without_its_sections_is_found() -> None:
    """A function is found if it is imported by name, as an attribute, re-exported or public; not within its room."""
    plain = 'def {}(a):\n    """A number."""\n'
    sources = {
        "impls.one": plain.format("named") + plain.format("within"),
        "impls.two": plain.format("attribute") + f"from {PACKAGE}.impls.one import within",
        "impls.three": 'def raising() -> None:\n    """Nothing."""\n    raise ValueError',
        "impls.hub": f"from {PACKAGE}.impls.three import raising as handed",
        "conformance.four": f"from {PACKAGE}.impls.one import named\nfrom {PACKAGE}.impls.hub import handed",
        "bench.five": f"from {PACKAGE}.impls import two\ntwo.attribute(1)",
        "reports.six": 'def whole() -> int:\n    """One.\n\n    Returns\n    -------\n    int\n    """\n',
        "reports.seven": plain.format("exported"),
        "api": f"from {PACKAGE}.reports.six import whole\nfrom {PACKAGE}.reports.seven import exported",
    }
    assert short(sources) == {
        "impls.one.named": {"Parameters"},
        "impls.two.attribute": {"Parameters"},
        "impls.three.raising": {"Raises"},
        "reports.seven.exported": {"Parameters"},
    }
