"""The gallery as Markdown: a short page, and two rows for the README."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attention_conformance.conformance.ledger.divergence import escaped
from attention_conformance.reports.gallery.html import SAYS, documentation, verdict
from attention_conformance.reports.gallery.view import BY_DESIGN, FAILED, PASSED, Asked, Row, View

PAGE = """\
# Gallery: the attention that libraries ship

{verdict}

Each is called the way its users call it, through an [adapter](gallery) of a few lines that corrects nothing, in float32
on the CPU, and judged by the [spec](../conformance/SPEC.md). A failure is a difference from that spec, and may be the
library's documented choice. The [page](../reports/published/gallery/index.html) has every failure with its message and
the command that reproduces it. `attention-conformance gallery run NAME` judges one again, and `gallery page` makes
these pages from the results that are kept. The most serious findings are written up as
[issues for upstream](../conformance/upstream/README.md). Machine and dates: {where}.

## What does each library do?

Bold: as the spec says.

{asked}

## Results by library

Number of failing cases; ✓ all pass, ◇ only invalid input accepted by design, – not supported, empty: not run.

{matrix}
{without}
## Causes named by the diagnosis

What `check` prints: a known fault, a value or an exception that gives exactly these results; for other failures, only
the way in which they fail. [How often that is right](../conformance/DIAGNOSIS.md#on-the-gallery).

{causes}

## Findings, and what the documentation says

{findings}

## What changed since the last version

{changes}
"""

#: Names that an answer has.
NAMED = 6


def page(view: View) -> str:
    """The whole page.

    Parameters
    ----------
    view
        View of the gallery.

    Returns
    -------
    str
        Markdown.
    """
    return PAGE.format(
        verdict=f"**{verdict(view)}**",
        where=escaped(view.where),
        asked="\n".join(f"- {_asked(one)}" for one in view.asked) or "None of the questions was answered.",
        matrix=_matrix(view),
        without="".join(
            f"\n**{escaped(entry.name)}**: {found.status.value}: {escaped(found.message)}\n"
            for entry, found in view.without
        ),
        causes=_causes(view),
        findings=_findings(view),
        changes=_changes(view),
    )


def gravest(view: View) -> str:
    """The three most serious findings, in a sentence for the README.

    Parameters
    ----------
    view
        View of the gallery.

    Returns
    -------
    str
        A sentence without a full stop.
    """
    return "; ".join(f"`{entry.name}`: {each.what[:1].lower()}{each.what[1:]}" for entry, each in view.gravest[:3])


def _asked(one: Asked) -> str:
    parts = []
    for text, names in one.answers.items():
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        said = f"**{escaped(text)}**" if text == one.right else escaped(text)
        parts.append(f"{said} ({', '.join(names[:NAMED])}{more})")
    return f"{one.text}: {'; '.join(parts)}."


def _matrix(view: View) -> str:
    heads = ["library", "versions", "fail", *view.groups]
    rows = [
        [_name(row), _versions(row), str(row.failed), *(_cell(row, name) for name in view.groups)] for row in view.rows
    ]
    return _table(rows, heads)


def _name(row: Row) -> str:
    return escaped(row.entry.name) + (" (cut off)" if row.record.message else "")


def _versions(row: Row) -> str:
    found = {name: text.partition("+")[0] for name, text in row.record.versions.items() if name != "Python"}
    return escaped(", ".join(f"{name} {text}" for name, text in found.items()) or ", ".join(row.entry.requires))


def _cell(row: Row, name: str) -> str:
    cell = row.cells.get(name)
    if cell is None:
        return ""
    return {FAILED: f"**{cell.failed}**", BY_DESIGN: "◇", PASSED: "✓"}.get(cell.worst, "–")


def _causes(view: View) -> str:
    lines = []
    for row in (row for row in view.rows if row.failed and row.diagnosis):
        lines.append(f"- **{escaped(row.entry.name)}**: {row.explained} of {row.failed} failures explained")
        lines += [f"  - {escaped(text)}" for text in (*row.named, *row.left)]
    before = [row.entry.name for row in view.rows if row.failed and not row.diagnosis]
    if before:
        lines += [*([""] if lines else []), f"Judged before causes were recorded: {', '.join(before)}."]
    return "\n".join(lines) or "No case fails."


def _findings(view: View) -> str:
    rows = []
    for entry, each in sorted(view.findings, key=lambda one: (not one[1].is_grave, list(SAYS).index(one[1].says))):
        quote = f" “{escaped(each.quote)}”" if each.quote else ""
        rows.append((entry.name, escaped(each.what), f"[{each.says.value}]({documentation(entry, each)}){quote}"))
    return _table(rows, ("library", "what it does", "documentation"))


def _changes(view: View) -> str:
    if view.changes:
        rows = [(one.name, one.versions, one.case, one.was, one.now) for one in view.changes]
        return _table(rows, ("library", "versions", "case", "before", "now"))
    if view.has_before:
        return "Nothing: every case that was run with both versions has the same outcome."
    return "No library has been judged in two versions yet."


def _table(rows: Iterable[Sequence[str]], heads: Sequence[str]) -> str:
    """A table whose cells are not padded, which would be half of the page."""
    lines = (heads, ["---"] * len(heads), *rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
