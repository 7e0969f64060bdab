"""Table at the end of a run: the results of each implementation, workload by workload, the fastest first.

It fits WIDTH columns whatever the names are.  Numbers take the width they need, and the name of an implementation gets
the rest: a longer name is cut in the middle, since names differ at their ends.  An invalid cell has a clause instead of
numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from attention_conformance.bench.records import Roofline

Record = Mapping[str, Any]
Justify = Literal["left", "right"]

#: Columns of a terminal that the table may use.
WIDTH = 100

#: The heads of the columns, in two lines: implementation, median and its interval, tokens and operations per second,
#: share of the measured peak of matrix products, the roofline that binds, peak memory, share of the error bound.
HEADS = (
    ("", "", "95 %", "tokens", "GFLOP", "of", "bound", "", "error /"),
    ("", "median", "interval", "/s", "/s", "peak", "by", "memory", "bound"),
)
ALIGNED: Sequence[Justify] = ("left", *("right",) * 5, "left", *("right",) * 2)

#: Names of the rooflines, in a record and in the table.
BOUND_BY = {"compute": "compute", "bandwidth": "memory", None: "–"}

#: Space between two columns, and before the lines of a workload.
GAP, INDENT = "  ", "  "

#: Width that no row reaches.
UNLIMITED = 10_000

#: Fewest characters that are kept of a name.
LEAST_NAME = 12

#: Text for a number that was not measured.
NOTHING = "–"

#: Units from large to small, each with its size.
TIMES = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
COUNTS = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0))
BYTES = (("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("B", 1.0))


def table(records: Iterable[Record], invalid: Iterable[Record] = (), width: int = WIDTH) -> str:
    """The table of timed cells and invalid ones, "" without any.

    A timed record is ``extra_info`` with ``seconds``, the median; an invalid one has implementation, device, dtype,
    workload, clause and reason.  Workloads are in the order of their first records.
    """
    timed, wrong = list(records), list(invalid)
    groups = list(dict.fromkeys(map(_group, [*timed, *wrong])))
    timed.sort(key=lambda record: (groups.index(_group(record)), record["seconds"]))
    head, rows = _lines(timed, width)
    text = head
    for group in groups:
        text.append(cut(" ".join(group), width))
        text += [row for row, record in zip(rows, timed, strict=True) if _group(record) == group]
        text += [_invalid(record, width) for record in wrong if _group(record) == group]
    return "\n".join(text)


def grid(rows: Iterable[Sequence[str]], aligned: Sequence[Justify]) -> list[str]:
    """The rows as plain lines with aligned columns, GAP apart, however wide."""
    made = Table.grid(padding=(0, len(GAP), 0, 0))
    for justify in aligned:
        made.add_column(justify=justify, no_wrap=True)
    for row in rows:
        made.add_row(*row)
    console = Console(width=UNLIMITED, color_system=None, markup=False, emoji=False, highlight=False)
    with console.capture() as captured:
        console.print(made)
    return [line.rstrip() for line in captured.get().splitlines()]


def limits(rooflines: Iterable[Roofline], width: int = WIDTH) -> list[str]:
    """Rooflines of the machine, a line for each device and dtype."""
    said = []
    for roofline in rooflines:
        ends = []
        for what, value, unit, by in (
            ("products", roofline.flops_per_second, "FLOP/s", roofline.flops_by),
            ("memory", roofline.bytes_per_second, "B/s", roofline.bytes_by),
        ):
            ends += [f"{what} {_scaled(value, COUNTS)}{unit} by {by}"] if value else []
        reached = ", ".join(ends) or "not measured"
        said.append(shortened(f"peak of {roofline.device} {roofline.dtype}: {reached}", width))
    return said


def _group(record: Record) -> tuple[str, ...]:
    return record["workload"], record["device"], record["dtype"]


def _lines(timed: Sequence[Record], width: int) -> tuple[list[str], list[str]]:
    """The head, and a line for each record, with aligned columns."""
    if not timed:
        return [], []
    numbers = [_numbers(record) for record in timed]
    columns = zip(*(head[1:] for head in HEADS), *numbers, strict=True)
    room = width - len(INDENT) - sum(len(GAP) + max(map(len, column)) for column in columns)
    names = [cut(record["implementation"], max(room, LEAST_NAME)) for record in timed]
    rows = [*HEADS, *([name, *row] for name, row in zip(names, numbers, strict=True))]
    lines = [shortened((INDENT + line).rstrip(), width) for line in grid(rows, ALIGNED)]
    return lines[: len(HEADS)], lines[len(HEADS) :]


def _numbers(record: Record) -> list[str]:
    """The columns after the name."""
    seconds = record["seconds"]
    unit, size = _unit(seconds, TIMES)
    interval = [_digits(end / size) for end in record.get("interval") or ()]
    return [
        f"{_digits(seconds / size)} {unit}",
        "–".join(interval) or NOTHING,
        _scaled(record.get("tokens_per_second"), COUNTS),
        NOTHING if record.get("gflops") is None else _digits(record["gflops"]),
        _percent(record.get("share_of_peak")),
        BOUND_BY[record.get("bound_by")],
        _scaled(record.get("memory_bytes"), BYTES),
        _percent(record.get("share")),
    ]


def _invalid(record: Record, width: int) -> str:
    """The line of a cell without a time: the name, cut if it exceeds half of the width, the clause and the reason."""
    name = INDENT + cut(record["implementation"], width // 2)
    said = f"{record.get('outcome', 'invalid').replace('-', ' ')}: {record['clause']}: {record['reason']}"
    return f"{name}{GAP}{shortened(said, width - len(name) - len(GAP))}"


def cut(text: str, width: int) -> str:
    """The text, cut in the middle if it is too long: a third of the rest is its beginning."""
    if len(text) <= width:
        return text
    start = (width - 1) // 3
    return f"{text[:start]}…{text[len(text) - (width - 1 - start) :]}"


def shortened(text: str, width: int) -> str:
    """The text, without its end if it is too long."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _unit(value: float, units: Sequence[tuple[str, float]]) -> tuple[str, float]:
    """The largest unit that is at most the value, or the smallest."""
    return next((each for each in units if value >= each[1]), units[-1])


def _digits(value: float) -> str:
    """Three digits, or all that are before the point, and at most three after it."""
    places = next((places for places, least in enumerate((99.95, 9.995, 0.9995)) if value >= least), 3)
    return f"{value:.{places}f}"


def _scaled(value: float | None, units: Sequence[tuple[str, float]]) -> str:
    """Three digits and a unit."""
    if value is None:
        return NOTHING
    unit, size = _unit(value, units)
    return f"{_digits(value / size)} {unit}".strip()


def _percent(share: float | None) -> str:
    """Whole percents, tenths below one, and "<0.1 %"."""
    if share is None:
        return NOTHING
    return "<0.1 %" if 0 < share < 0.001 else f"{100 * share:.{1 if 0 < share < 0.01 else 0}f} %"
