"""Upstream issues: for each cause in the ledger a title, a script of a few lines, and what the documentation promises.

``issues.toml`` holds them.  The text of an issue is written from a run of its script, so that the output and the
versions are those of this machine.  A record without an issue, as in a user's own ledger, is shown by the script of its
first case.
"""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import platform
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from attention_conformance.conformance.ledger.load import Deviation, Ledger, LedgerError
from attention_conformance.impls.loading import nearest
from attention_conformance.impls.strict import convert, plain

ISSUES = Path(__file__).with_name("issues.toml")

#: Seconds that a script may take: an export takes ten on a busy machine.
TIMEOUT = 300.0

#: Lines of a script's output that an issue quotes, and characters of one of them.
QUOTED_LINES, QUOTED_WIDTH = 8, 400

#: Packages whose version belongs in a report in addition to those that a script imports.
BESIDE = {"jax": ("jaxlib",), "torch.onnx": ("onnx", "onnxscript")}

#: Beginnings of lines of standard error that say nothing about the failure.
_NOISE = ("Traceback", "  ", "W1", "\x1b", "--------------------", "For simplicity, JAX", "[")


@dataclass(frozen=True)
class Issue:
    """One cause, as it is reported upstream."""

    title: str
    #: The documentation that promises otherwise, and its words.
    link: str
    #: A self-contained Python file that exits with 0 once the library is right.
    script: str
    #: The ledger's records that it explains, by their ids; none where no case tests it.
    records: tuple[str, ...] = ()
    promise: str = ""
    #: What the promise means here, where it does not say so itself: a sentence or two.
    follows: str = ""
    #: What the title says, as an expression over the names of the script; ``error`` is what it raised.
    claim: str = ""
    #: The signal that kills the script, where one does.
    signal: str = ""
    name: str = ""


@dataclass(frozen=True)
class Seen:
    """Run of a script: its exit status (negative for a signal), and what it printed."""

    status: int
    said: str

    @property
    def came(self) -> str:
        """The lines that it printed, and the signal that killed it, if any."""
        killed = f"killed by {signal.Signals(-self.status).name}" if self.status < 0 else ""
        return "\n".join(filter(None, (self.said, killed)))


@functools.cache
def issues() -> tuple[Issue, ...]:
    """All issues, in the order of the file.

    Returns
    -------
    tuple[Issue, ...]
        Issues, each with its name.

    Raises
    ------
    WrongType
        For a file with other fields.
    TOMLDecodeError
        For a file that is no TOML.
    """
    data = tomllib.loads(ISSUES.read_text(encoding="utf-8"))
    return tuple(replace(convert(each, Issue), name=name) for name, each in data.items())


def issue_of(record: Deviation) -> Issue | None:
    """The issue that explains a record of the suite's own ledger."""
    return next((each for each in issues() if record.id in each.records), None)


def run(script: str, timeout: float = TIMEOUT, python: str = sys.executable) -> Seen:
    """Run a script as a user would, in an empty folder, by this interpreter or another one.

    Parameters
    ----------
    script
        Source of Python.
    timeout
        Seconds.
    python
        The path of an interpreter.

    Returns
    -------
    Seen
        The exit status, 1 after the timeout, and the last lines that were printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "script.py")
        path.write_text(script, encoding="utf-8")
        try:
            done = subprocess.run(  # noqa: S603  (our own interpreter)
                [python, str(path)], capture_output=True, text=True, timeout=timeout, cwd=folder, check=False
            )
        except subprocess.TimeoutExpired:
            return Seen(1, f"ran for more than {timeout:g} s")
    lines = [*done.stdout.splitlines(), *_last_words(done.stderr)]
    return Seen(done.returncode, "\n".join(plain(line)[:QUOTED_WIDTH] for line in lines[-QUOTED_LINES:]))


def _last_words(stderr: str) -> list[str]:
    """The exception of a traceback, or the text that a script ends with."""
    lines = [line for line in stderr.strip().splitlines() if line.strip() and not line.startswith(_NOISE)]
    return [line for line in lines[-1:] if "Warning" not in line and line != "AssertionError"]


def modules(script: str) -> tuple[str, ...]:
    """The modules that a script imports, and ``torch.onnx`` where it exports.

    Parameters
    ----------
    script
        Source of Python.

    Returns
    -------
    tuple[str, ...]
        Top-level names, in the order of the script, each once.

    Raises
    ------
    SyntaxError
        For a text that is no Python.
    """
    found: list[str] = []
    for node in ast.walk(ast.parse(script)):
        if isinstance(node, ast.Import):
            found += [alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module.partition(".")[0])
    found += ["torch.onnx"] if "torch.onnx." in script else []
    return tuple(dict.fromkeys(found))


def located(script: str) -> tuple[str, ...]:
    """Packages whose files a script uses, by ``distribution("NAME")``, without importing them."""
    calls = [node for node in ast.walk(ast.parse(script)) if isinstance(node, ast.Call)]
    names = [each.args[0] for each in calls if getattr(each.func, "id", "") == "distribution" and each.args]
    return tuple(dict.fromkeys(str(name.value) for name in names if isinstance(name, ast.Constant)))


def versions(script: str) -> dict[str, str]:
    """Versions of every library involved that is installed."""
    wanted = [name for module in modules(script) for name in (module, *BESIDE.get(module, ()))]
    wanted += located(script)
    found = {}
    for name in dict.fromkeys(wanted):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def text(issue: Issue, seen: Seen, named: str = "") -> str:
    """The text to paste: title, script, output, promise, versions (default: those of this process).

    Parameters
    ----------
    issue
        Title, script, promise and link.
    seen
        Output of the script when it was run.
    named
        The packages with their versions.

    Returns
    -------
    str
        Markdown.
    """
    quote = " ".join(issue.promise.split())
    promised = f'The [{_kind(issue.link)}]({issue.link}): "{quote}" {issue.follows}'.rstrip()
    system = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    parts = [
        f"# {issue.title}",
        f"```python\n{issue.script.rstrip()}\n```",
        f"What comes:\n\n```\n{seen.came}\n```",
        promised,
        f"Versions: {named or _version_list(issue.script)}, {system}",
    ]
    return "\n\n".join(parts)


def _kind(link: str) -> str:
    """Kind of the quoted page: the source if the link is to a Python file."""
    return "source" if link.endswith(".py") else "documentation"


def find(id_: str, ledger: Ledger) -> Issue | Deviation:
    """The issue for a record, by the record's id or the issue's name; the record itself where it has none.

    Raises LedgerError for an id that the ledger does not have.
    """
    known: dict[str, Issue | Deviation] = {each.name: each for each in issues()}
    known |= {record.id: issue_of(record) or record for record in ledger.deviations}
    if id_ not in known:
        raise LedgerError(f"no record {id_}{nearest(id_, known)}")
    return known[id_]


def write(issue: Issue) -> str | tuple[str, int]:
    """The text of an issue, from a run of its script.

    Returns
    -------
    str or (str, int)
        The text; or a sentence with 1 where the script is right with the installed versions.

    Raises
    ------
    LedgerError
        For a script whose packages are not installed.
    """
    absent = _absent(issue.script)
    if absent:
        raise LedgerError(f"{issue.name}: its script needs {', '.join(absent)}, not installed")
    seen = run(issue.script)
    if seen.status == 0:
        here = _version_list(issue.script)
        return f"# {issue.name}: right with the versions installed here ({here}), nothing to report", 1
    return text(issue, seen)


def _version_list(script: str) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions(script).items())


def _absent(script: str) -> Sequence[str]:
    known = versions(script)
    wanted = (*(name for name in modules(script) if "." not in name), *located(script))
    return [name for name in dict.fromkeys(wanted) if name not in known and _third_party(name)]


def _third_party(module: str) -> bool:
    return module not in sys.stdlib_module_names
