"""Changes since a base run: the answer at the top of the page, and its tables."""

from __future__ import annotations

from attention_conformance.bench.analysis.statistics import Interval, Verdict
from attention_conformance.bench.workloads.titles import title
from attention_conformance.reports.compare import pages
from attention_conformance.reports.compare.changes import Comparison, Level, Speed, Status
from attention_conformance.reports.html.views import Answer, Cell, Group, Table, columns, link, milliseconds, number
from attention_conformance.reports.text import digits

QUESTION = "What got worse since the base run?"

#: Mark of a change, in front of its words, so that no reader depends on colour.
MARKS = {
    Level.WORSE: ("✗ worse", "failed"),
    Level.IGNORED: ("– ignored", "unsupported"),
    Level.BETTER: ("✓ better", "passed"),
    Level.NOTE: ("· note", ""),
}
VERDICTS = {
    Verdict.SLOWER: ("✗ slower", "failed"),
    Verdict.UNCLEAR: ("? unclear", "known-deviation"),
    Verdict.SAME: ("= same", ""),
    Verdict.FASTER: ("✓ faster", "passed"),
}


def worse(found: Comparison | None) -> Answer:
    """Changes for the worse: cells that are slower, then each other kind of change with the first of its places."""
    if found is None:
        return Answer("worse", QUESTION, "Unknown: this page was made without a base run to compare with.")
    slower = sorted(found.slower, key=lambda cell: -cell.ratio.value)
    groups = [_group("Slower", len(slower), list(map(_slower, slower)))] if slower else []
    rows = pages.changes(found.changes, [Level.WORSE]).to_dict("records")
    for kind in dict.fromkeys(row["change"] for row in rows):
        some = [row for row in rows if row["change"] == kind]
        items = [Cell(f"{row['implementation']} {row['dtype']} {row['where']}", tip=row[FIRST]) for row in some]
        number_of = sum(row["count"] for row in some)
        groups.append(_group(kind.capitalize(), number_of, items))
    told = pages.summary_sentences(found)
    clear = found.results > 0 or not all(map(_unclear, found.speeds))
    nothing = "Nothing for certain" if found.unfit or any(map(_unclear, found.speeds)) else "Nothing"
    leads = {
        Status.WORSE: f"Worse: {', '.join(pages.worse_counts(found))}.",
        Status.NOTHING_WORSE: f"{nothing}: {told}.",
        Status.CANNOT_TELL: f"{nothing}: {told}." if clear else f"Cannot tell: {told}.",
    }
    said = [*([told] if found.status is Status.WORSE else []), *found.unfit, *pages.rules(found)]
    note = " ".join(f"{text[:1].upper()}{text[1:]}." for text in said)
    return Answer("worse", QUESTION, leads[found.status], tuple(groups), note, "changes")


#: The column of attention_conformance.reports.compare.pages that shows the first change of a row.
FIRST = "first: base → new"


def _group(label: str, count: int, items: list[Cell]) -> Group:
    return Group(f"{label} ({count})", "failed", tuple(items))


def tables(found: Comparison) -> list[Table]:
    """Times whose verdict is clear, slower ones first; then all other changes, the worse first."""
    return [each for each in (_speeds(found), _changes(found)) if each.rows]


def notes(found: Comparison) -> list[str]:
    """Notes on a comparison, a paragraph each: the way that times were judged, and what a reader should know.

    Parameters
    ----------
    found
        The comparison.

    Returns
    -------
    list[str]
        Sentences as the terminal prints them: many begin with a name, and one ends with a command.
    """
    return [*pages.rule(found), *found.notes]


def _speeds(found: Comparison) -> Table:
    order = list(VERDICTS)
    cells = [cell for cell in found.speeds if cell.verdict is not Verdict.UNCLEAR]
    cells.sort(key=lambda cell: (order.index(cell.verdict), -cell.ratio.value))
    rows = tuple(
        (
            Cell(cell.implementation, look="name", link=_cell(cell)),
            Cell(cell.workload, look="name", tip=title(cell.workload)),
            Cell(cell.device),
            Cell(cell.dtype),
            Cell(_verdict(cell), order.index(cell.verdict), look="" if cell.ignored else VERDICTS[cell.verdict][1]),
            number(cell.ratio.value, f"{digits(cell.ratio.value)}×", tip=_interval(cell.ratio)),
            number(cell.base, _time(cell.base, found)),
            number(cell.new, _time(cell.new, found)),
            Cell(cell.why),
        )
        for cell in cells
    )
    numbers = ("ratio", "base", "new")
    heads = columns("implementation", "workload", "device", "dtype", "verdict", *numbers, "why", numbers=numbers)
    return Table("speed-changes", "Times since the base run", heads, rows)


def _changes(found: Comparison) -> Table:
    rows = []
    for level, (mark, look) in MARKS.items():
        for row in pages.changes(found.changes, [level]).to_dict("records"):
            cells = (Cell(row[name]) for name in ("change", "implementation", "dtype"))
            count = Cell(str(row["count"]), row["count"])
            verdict = Cell(mark, list(MARKS).index(level), look=look)
            where, first = Cell(row["where"], look="several"), Cell(row[FIRST], look="reason")
            rows.append((verdict, *cells, count, where, first, Cell(row["device"])))
    titles = ("verdict", "change", "implementation", "dtype", "count", "where", FIRST, "device")
    heads = columns(*titles, numbers=("count",))
    return Table("other-changes", "Conformance, accuracy, memory and cells", heads, tuple(rows))


def _slower(cell: Speed) -> Cell:
    text = f"{cell.implementation} {cell.dtype}, {title(cell.workload)}: {digits(cell.ratio.value)}×"
    return Cell(text, tip=_interval(cell.ratio), link=_cell(cell))


def _cell(cell: Speed) -> str:
    return link("cell", cell.implementation, cell.device, cell.dtype, cell.workload)


def _unclear(cell: Speed) -> bool:
    return cell.verdict is Verdict.UNCLEAR


def _verdict(cell: Speed) -> str:
    return VERDICTS[cell.verdict][0] + (" (ignored)" if cell.ignored else "")


def _interval(ratio: Interval) -> str:
    return f"95 % interval {digits(ratio.low)} to {digits(ratio.high)}"


def _time(one: float, found: Comparison) -> str:
    return f"{digits(one)} × {found.yardstick}" if found.yardstick else milliseconds(one)
