"""The command ``attention-conformance``: one word for each thing that the suite does."""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Exit status of a command whose input cannot be used, as argparse has it for an option; and after an interrupt.
UNUSABLE, INTERRUPTED = 2, 130


@dataclass(frozen=True)
class Command:
    """A command: one sentence of help, an example, and the functions that add its options and run it."""

    text: str
    example: str
    #: ``module:function`` in this package; the function is given the options by name and returns what is printed, an
    #: exit status, or both.
    run: str
    #: ``module:function`` that adds options to a parser, or "" for a command without any.
    options: str = ""
    #: The extra of the package that the command needs, or "" where the core is enough.
    extra: str = ""


COMMANDS: dict[str, Command] = {
    "check": Command(
        "judge implementations: like `pytest conformance`, but in any folder",
        "attention-conformance check mykernels.py:attention --dtype float32",
        "cli:check",
        "cli:check_options",
    ),
    "bench": Command(
        "time implementations: like `pytest bench`, but in any folder",
        "attention-conformance bench mykernels.py:attention --preset quick --benchmark-json bench.json",
        "cli:bench",
        "cli:bench_options",
        extra="bench",
    ),
    "suite": Command(
        "judge and time implementations, and write a report: `check`, `bench` and `report`, one after the other",
        "attention-conformance suite mykernels.py:attention -o results",
        "suite:run",
        "suite:options",
        extra="reports",
    ),
    "gate": Command(
        "accept or reject a generated kernel (or: cannot tell)",
        "attention-conformance gate candidate.py:attention --shape 2,4,4,64,64,32 --json verdict.json",
        "bench.gate.command:run",
        "bench.gate.command:options",
        extra="bench",
    ),
    "compare-revisions": Command(
        "time two git revisions or environments side by side: a paired comparison",
        "attention-conformance compare-revisions --base main --impl mykernels.py:attention",
        "bench.paired.command:run",
        "bench.paired.command:options",
        extra="bench",
    ),
    "report": Command(
        "write a report from result files",
        "attention-conformance report conformance.jsonl bench.json -o report",
        "reports.command:run",
        "reports.command:options",
        extra="reports",
    ),
    "compare": Command(
        "show what changed between two runs",
        "attention-conformance compare old/ new/",
        "reports.compare.command:run",
        "reports.compare.command:options",
        extra="reports",
    ),
    "agree": Command(
        "check whether two runs of the bench agree within the intervals they print",
        "attention-conformance agree first.json second.json",
        "reports.compare.agreement:run",
        "reports.compare.agreement:options",
        extra="reports",
    ),
    "publish": Command(
        "keep result files compressed in a checkout, and regenerate the published page and summary",
        "attention-conformance publish results/conformance.jsonl results/bench.json",
        "reports.publish:run",
        "reports.publish:options",
        extra="reports",
    ),
    "history": Command(
        "show how every cell changed over many runs",
        "attention-conformance history runs/ -o history",
        "reports.history.command:run",
        "reports.history.command:options",
        extra="reports",
    ),
    "script": Command(
        "run one case and print the standalone script of its failure",
        "attention-conformance script --impl mykernels.py:attention --case causal-more-keys",
        "conformance.script:run_script",
        "conformance.script:script_options",
    ),
    "cases": Command(
        "list every case with its reason, by clause",
        "attention-conformance cases",
        "conformance.commands:list_cases",
    ),
    "clauses": Command(
        "list every clause of the spec", "attention-conformance clauses", "conformance.commands:list_clauses"
    ),
    "export": Command(
        "write the cases as test vectors for other languages",
        "attention-conformance export vectors --case 'causal*'",
        "conformance.vectors.commands:run_export",
        "conformance.vectors.commands:export_options",
        extra="vectors",
    ),
    "check-vectors": Command(
        "judge results that were computed from test vectors",
        "attention-conformance check-vectors vectors results --name mykernel",
        "conformance.vectors.commands:run_check",
        "conformance.vectors.commands:check_options",
        extra="vectors",
    ),
    "merge": Command(
        "join the result files of the shards of a run",
        "attention-conformance merge conformance.jsonl part1.jsonl part2.jsonl",
        "conformance.commands:merge_parts",
        "conformance.commands:merge_options",
    ),
    "ledger": Command(
        "keep the ledger of known deviations up to date, and report them: propose, stale, apply, list, issue, page",
        "attention-conformance ledger stale conformance.jsonl",
        "conformance.ledger.commands:run_ledger",
        "conformance.ledger.commands:ledger_options",
    ),
    "kill-matrix": Command(
        "judge every fault on every case and write the kill matrix (a minute)",
        "attention-conformance kill-matrix -o faults.json",
        "conformance.commands:write_kill_matrix",
        "conformance.commands:kill_matrix_options",
    ),
    "evidence": Command(
        "measure the evidence for the error bounds (minutes)",
        "attention-conformance evidence --only sdpa",
        "conformance.commands:write_evidence",
        "conformance.commands:evidence_options",
    ),
    "pages": Command(
        "regenerate every document of a checkout that is made from tracked data, without a long run",
        "attention-conformance pages examples bounds",
        "pages:run",
        "pages:options",
        extra="reports",
    ),
    "gallery": Command(
        "judge attention in other libraries, each in its own environment: list, run, page, issue",
        "attention-conformance gallery run 'flax-*' --work gallery",
        "gallery:run",
        "gallery:options",
        extra="reports",
    ),
    "schema": Command(
        "print the JSON schema of a report's model.json, a comparison or a history",
        "attention-conformance schema comparison",
        "reports.command:schema",
        "reports.command:schema_options",
        extra="reports",
    ),
}


#: Old names of commands, and their names now.
RENAMED = {"duet": "compare-revisions"}


def _load(reference: str) -> Callable[..., Any]:
    module, _, function = reference.partition(":")
    return getattr(importlib.import_module(f"{__package__}.{module}"), function)


class _Forward(argparse.Action):
    """Keeps an option and its values as they were written, for pytest."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        given = values if isinstance(values, list) else [values]
        namespace.forwarded = [*(namespace.forwarded or []), option_string, *given]


def _as_written(convert: Callable[[str], Any]) -> Callable[[str], str]:
    """The text of a value that can be converted, as pytest converts it again; argparse reports one that cannot."""

    @functools.wraps(convert)
    def checked(text: str) -> str:
        convert(text)
        return text

    return checked


def _forwarding(parser: argparse.ArgumentParser) -> Callable[..., Any]:
    """``parser.add_argument`` for the options of a pytest plugin, which pytest will read."""

    def add(*flags: str, **settings: Any) -> None:
        if settings.pop("action", "store").startswith("store_"):
            settings["nargs"] = 0
        settings["help"] = settings.get("help", "").replace("%(default)s", str(settings.pop("default", None)))
        settings.pop("dest", None)
        if "type" in settings:
            settings["type"] = _as_written(settings["type"])
        parser.add_argument(*flags, action=_Forward, dest="forwarded", **settings)

    return add


def _pytest_options(parser: argparse.ArgumentParser, *sources: str) -> Callable[..., Any]:
    parser.add_argument(
        "what", nargs="*", metavar="WHAT", help="as for --impl; default: all built-in and registered ones"
    )
    add = _forwarding(parser)
    for source in sources:
        _load(source)(add)
    add("-q", action="store_true", help="print less")
    add("-v", action="store_true", help="print more")
    add("-x", action="store_true", help="stop at the first failure")
    add("-k", metavar="EXPRESSION", help="only tests whose names match, as in pytest")
    return add


def check_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``check``: those of ``pytest conformance``.

    Parameters
    ----------
    parser
        Parser of the command.
    """
    add = _pytest_options(parser, "conformance.options:add", "conformance.options:add_fuzz")
    add("-n", metavar="N", help="spread whole implementations over N processes; needs pytest-xdist")


def bench_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``bench``: those of ``pytest bench`` that timing reads.

    Parameters
    ----------
    parser
        Parser of the command.
    """
    add = _pytest_options(parser, "conformance.options:add_shared", "bench.options:add")
    add("--benchmark-json", metavar="FILE", help="write the results to this file")


def check(what: list[str], forwarded: list[str] | None) -> int:
    """Run ``pytest conformance``; the exit status is pytest's.

    Parameters
    ----------
    what
        Functions, as ``--impl`` takes them, one each.
    forwarded
        Options for pytest, as they were written.

    Returns
    -------
    int
        Pytest's exit status.
    """
    return _pytest("conformance", what, forwarded or [])


def bench(what: list[str], forwarded: list[str] | None) -> int:
    """Run ``pytest bench``; the exit status is pytest's.

    Parameters
    ----------
    what
        Functions, as ``--impl`` takes them, one each.
    forwarded
        Options for pytest, as they were written.

    Returns
    -------
    int
        Pytest's exit status.
    """
    return _pytest("bench", what, forwarded or [], ["pytest_benchmark.plugin"])


def _pytest(room: str, what: Sequence[str], forwarded: Sequence[str], others: Sequence[str] = ()) -> int:
    """Run pytest on a room with the suite's plugins and ``others``, not the folder's conftest, settings or plugins."""
    import pytest

    from attention_conformance.pytest_entry import ROOMS, lacking

    if lacking(room):
        print(f"error: {lacking(room)}", file=sys.stderr)
        return UNUSABLE

    folder = Path(importlib.import_module(f"{__package__}.{room}").__file__ or "").resolve().parent
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
        os.environ.pop(name, None)
    spread = "-n" in forwarded
    if spread and importlib.util.find_spec("xdist") is None:
        print("error: -n needs pytest-xdist: pip install pytest-xdist", file=sys.stderr)
        return UNUSABLE
    plugins = [*ROOMS[room], *others, *(["xdist.plugin"] if spread else [])]
    settings = ["-c", os.devnull, "--rootdir", os.getcwd(), "--confcutdir", str(folder), "--import-mode=importlib"]
    chosen = [part for one in what for part in ("--impl", one)]
    named = [part for plugin in plugins for part in ("-p", plugin)]
    # What follows the folder is what the caller wrote; the bench records it as the command of its run.
    return int(pytest.main([*settings, "-p", "no:cacheprovider", *named, str(folder), *chosen, *forwarded]))


def parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The whole command line; only the requested command gets its options, as they import its modules.

    Parameters
    ----------
    words
        The command line.

    Returns
    -------
    argparse.ArgumentParser
        The parser of all commands.
    """
    whole = argparse.ArgumentParser(
        prog="attention-conformance",
        description="Says whether an implementation of attention is right, how accurate, how fast, and whether that"
        " changed.",
        epilog="Every command has its own --help, with an example.",
    )
    asked = _asked(words)
    whole.add_argument("--version", action="store_true", help="print the version and exit")
    commands = whole.add_subparsers(dest="command", metavar="COMMAND")
    for name, command in COMMANDS.items():
        one = commands.add_parser(
            name,
            help=command.text,
            description=f"{command.text[0].upper()}{command.text[1:]}.",
            epilog="",
            allow_abbrev=False,
        )
        if command.options and name == asked:
            _load(command.options)(one)
        one.epilog = f"{one.epilog or ''} Example: {command.example}".strip()
    return whole


def _asked(words: Sequence[str]) -> str:
    """The command that a command line asks for: its first word; "" for none."""
    return next((word for word in words if not word.startswith("-")), "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    arguments
        The words of the command line; None for those of this process.

    Returns
    -------
    int
        Exit status: 0, what the command decides, or 2 for an unusable input, which is reported in one sentence.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    name = _asked(words)
    try:
        return _run(words)
    except KeyboardInterrupt:
        return INTERRUPTED
    except ModuleNotFoundError as error:
        extra = COMMANDS[name].extra if name in COMMANDS else ""
        if not extra or (error.name or "").startswith(str(__package__)):
            raise
        print(f"error: {name} needs {error.name}: pip install 'attention-conformance[{extra}]'", file=sys.stderr)
        return UNUSABLE


def _run(words: Sequence[str]) -> int:
    if words and words[0] in RENAMED:
        print(f"error: {words[0]} is now {RENAMED[words[0]]}", file=sys.stderr)
        return UNUSABLE
    options = vars(parser(words).parse_args(words))
    name = options.pop("command")
    if options.pop("version"):
        from importlib.metadata import version

        print(version("attention-conformance"))
        return 0
    if name is None:
        parser().print_help()
        return UNUSABLE
    from attention_conformance.impls.contract import InputError

    try:
        done = _load(COMMANDS[name].run)(**options)
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return UNUSABLE
    text, status = done if isinstance(done, tuple) else ("", done) if isinstance(done, int) else (done, 0)
    try:
        if text:
            print(text, flush=True)
    except BrokenPipeError:  # the reader, such as head, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status
