"""``attention-conformance gallery issue``: the texts of upstream issues, each from a run of its script.

A script of the gallery is run in the environment of its entry, which is installed if it is missing; a script of the
ledger is run in this environment.  A text whose claim no longer holds is not written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

from attention_conformance.conformance.ledger import issues
from attention_conformance.impls.contract import InputError
from attention_conformance.impls.gallery import Entry
from attention_conformance.impls.gallery.upstream import Upstream, upstream

#: Folder of the published texts, in the documentation.
FOLDER = Path(issues.__file__).resolve().parents[1] / "upstream"
INDEX = "README.md"

#: What was checked by hand when the texts were last written; it changes with them.
CHECKED = "on 2026-11-25 the newest for Python 3.11, but of PyTorch: 2.13, where 2.15 was the newest"

_HEAD = f"""\
# Upstream issues

The most serious findings of the [ledger](../DEVIATIONS.md) and of the [gallery](../../impls/GALLERY.md), each as the
text of an issue: a script in the library's own terms, what came of it, and what the documentation says. Each was run
with the versions that it names, {CHECKED}.
`attention-conformance gallery issue '*' --work FOLDER -o conformance/upstream` writes them anew, and refuses one
whose script is right by then.

What was searched is stored copies of GitHub's threads, by meaning and not by every word, so "unreported" says that no
thread about it was found there.

| library | issue | thread | searched |
| --- | --- | --- | --- |
"""

#: Text before a script: the script ends with FALSE if it raises and its claim does not hold.
FALSE = 9
_CLAIMED = """\
import os, sys, traceback

def claimed(kind, error, trace):
    traceback.print_exception(kind, error, trace)
    sys.stdout.flush()
    try:
        holds = bool(eval({claim!r}, {{**globals(), "error": error}}))
    except Exception:
        holds = False
    os._exit(1 if holds else {false})

sys.excepthook = claimed
"""


def chosen(names: Sequence[str]) -> dict[str, Upstream]:
    """Reports whose names match.  Raises InputError for a name or a pattern that matches none."""
    known = upstream()
    unknown = [name for name in names if not any(fnmatch(each, name) for each in known)]
    if unknown:
        raise InputError(f"{unknown[0]!r} is not an upstream issue; known: {', '.join(known)}")
    return {name: one for name, one in known.items() if any(fnmatch(name, each) for each in names)}


def issue(name: str, one: Upstream) -> issues.Issue:
    """The issue itself: the report's own, or the ledger's of that name.  Raises InputError if the ledger has none."""
    if one.entry:
        return issues.Issue(
            title=one.title, link=one.link, script=one.script, promise=one.promise, follows=one.follows,
            claim=one.claim, name=name,
        )  # fmt: skip
    found = next((each for each in issues.issues() if each.name == name), None)
    if found is None:
        raise InputError(f"{name}: the ledger has no issue of that name, and no entry is named")
    return found


def written(name: str, one: Upstream, python: str, named: str) -> str:
    """The text, from a run of the script by ``python`` with packages in the versions in ``named``.

    Raises InputError if the script is right, or its claim does not hold.
    """
    found = issue(name, one)
    script = (_CLAIMED.format(claim=found.claim, false=FALSE) if found.claim else "") + found.script
    seen = issues.run(script, python=python)
    if seen.status in (0, FALSE):
        why = "its claim does not hold" if seen.status else "right, nothing to report"
        raise InputError(f"{name}: with {named or 'the versions installed here'}: {why}")
    return issues.text(found, seen, named) + "\n"


def library(name: str, one: Upstream, known: Mapping[str, Entry]) -> str:
    """Name of the library in the index: the entry's package, or what the ledger's script imports."""
    if one.entry:
        return known[one.entry].package
    imported = [each.partition(".")[0] for each in issues.modules(issue(name, one).script)]
    return "onnxruntime" if "onnxruntime" in imported else imported[-1]


def index(known: Mapping[str, Entry]) -> str:
    """The page with the table of all issues."""
    rows = []
    for name, one in sorted(upstream().items(), key=lambda pair: (library(pair[0], pair[1], known), pair[0])):
        title = issue(name, one).title.replace("|", "\\|")
        thread = one.upstream if one.upstream == "unreported" else f"[thread]({one.upstream})"
        rows.append(f"| {library(name, one, known)} | [{title}]({name}.md) | {thread} | {one.searched} |\n")
    return _HEAD + "".join(rows)
