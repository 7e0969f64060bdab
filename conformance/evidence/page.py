"""BOUNDS.md: a page of words, page.md, with the numbers of evidence.json set in."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from conformance.evidence import record, sensitivity

WORDS = Path(__file__).with_name("page.md")
PAGE = record.EVIDENCE.with_name("BOUNDS.md")

#: What excludes a problem and is no record of a library's deviation.
OUT_OF_RANGE = "a score is beyond the dtype's largest number, and the program stores scores: nothing is promised"

#: Headers of the two tables of implementations.
JUDGED = ("dtype", "profile", "judged", "false alarms", "median share", "largest share", "stricter profiles kept")


def write(evidence: Path = record.EVIDENCE) -> Path:
    """Write the page beside the evidence, and say where."""
    page = evidence.with_name(PAGE.name)
    page.write_text(render(record.read(evidence)), encoding="utf-8")
    return page


def render(evidence: dict[str, Any]) -> str:
    """The page.  Raises KeyError for a number that the words name and the evidence lacks."""
    rows, drawn = evidence["rows"], evidence["drawn"]
    values = {
        "problems": f"{evidence['problems']:,}",
        "judged": f"{sum(row['judged'] for row in rows):,}",
        "alarms": str(sum(row["alarms"] for row in rows)),
        "caught": power(max(row["smallest"] for row in _float32_wide(evidence["sensitivity"]))),
        "seed": str(evidence["seed"]),
        "dtypes": ", ".join(f"{count:,} are in {dtype}" for dtype, count in drawn["dtypes"].items()),
        "sizes": table(
            ("size", "smallest", "largest"),
            [(name, f"{a:g}", f"{b:g}") for name, (a, b) in drawn["sizes"].items()],
            "lrr",
        ),
        "options": table(
            ("option", "problems", "share"),
            [(name, f"{n:,}", f"{n / evidence['problems']:.0%}") for name, n in drawn["has"].items()],
            "lrr",
        ),
        "fewer": ", ".join(f"`{name}` gets every {n}th" for name, n in evidence["every"].items()),
        "libraries": _libraries(row for row in rows if not row["variant"]),
        "variants": _variants(row for row in rows if row["variant"]),
        "excluded": _excluded(rows),
        "records": _records(rows, evidence["deviations"]),
        "sensitivity": _sensitivity(evidence["sensitivity"]),
        "versions": ", ".join(f"{name} {version}" for name, version in evidence["versions"].items()),
        **_counts("float32", evidence["float32"]["cases"]),
        **_counts("random", evidence["float32"]["problems"]),
        **{name: evidence["machine"][name] for name in ("python", "system")},
    }
    return string.Template(WORDS.read_text(encoding="utf-8")).substitute(values)


def table(header: Sequence[str], rows: Sequence[Sequence[Any]], align: str) -> str:
    """A Markdown table; ``align`` has an l or an r for each column."""
    sides = ["right" if letter == "r" else "left" for letter in align]
    return tabulate(rows, header, tablefmt="pipe", disable_numparse=True, colalign=sides)


def power(number: float) -> str:
    """1.2e-05 as 1.2 · 10⁻⁵."""
    mantissa, _, exponent = f"{number:.1e}".partition("e")
    return f"{mantissa} · 10{str(int(exponent)).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


def _libraries(rows: Iterable[dict[str, Any]]) -> str:
    body = [(*_judged(row), f"{row['unsupported']:,}", f"{sum(row['known'].values()):,}") for row in rows]
    return table(("implementation", *JUDGED, "unsupported", "excluded"), body, "lllrrrrlrr")


def _variants(rows: Iterable[dict[str, Any]]) -> str:
    body = [(*_judged(row), f"{sum(row['known'].values()):,}") for row in rows]
    return table(("variant", *JUDGED, "excluded"), body, "lllrrrrlr")


def _judged(row: dict[str, Any]) -> tuple[str, ...]:
    strict = list(row["meets"])[: list(row["meets"]).index(row["profile"])]
    kept = ", ".join(f"{name} {row['meets'][name] / row['judged']:.0%}" for name in strict if row["judged"])
    shares = ("–" if row[name] is None else f"{row[name]:.3g}" for name in ("median", "largest"))
    counts = (f"{row['judged']:,}", str(row["alarms"]))
    return (f"`{row['implementation']}`", row["dtype"], row["profile"], *counts, *shares, kept or "–")


def _excluded(rows: Iterable[dict[str, Any]]) -> str:
    counts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        for records, count in row["known"].items():
            counts[row["implementation"], records] += count
    body = [(f"`{name}`", records, f"{count:,}") for (name, records), count in counts.items()]
    return table(("implementation", "record, or records together", "problems"), body, "llr")


def _records(rows: Iterable[dict[str, Any]], records: dict[str, dict[str, Any]]) -> str:
    met = {name for row in rows for names in row["known"] for name in names.split(", ")}
    unknown = {"clause": "SDPA-26", "instead": OUT_OF_RANGE}
    body = []
    for name in sorted(met):
        each = records.get(name, unknown)
        body.append((name, each["clause"], each["instead"]))
    return table(("record", "clause", "what happens"), body, "lll")


def _sensitivity(rows: Iterable[dict[str, Any]]) -> str:
    groups: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["dtype"], row["profile"]), {})[row["quantity"]] = row
    names = list(sensitivity.QUANTITIES)
    body = [
        (dtype, profile, group[names[0]]["cases"], *(_pair(group[name]) for name in names))
        for (dtype, profile), group in groups.items()
    ]
    return table(("dtype", "profile", "cases", *names), body, "llrrrrrr")


def _pair(row: dict[str, Any]) -> str:
    return f"{power(row['smallest'])} ({'–' if row['median'] is None else power(row['median'])})"


def _float32_wide(rows: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    return (row for row in rows if (row["dtype"], row["profile"]) == ("float32", "wide"))


def _counts(name: str, counts: dict[str, int]) -> dict[str, str]:
    numbers = {"cases": sum(counts.values()), "nothing": counts["float32"], **counts}
    return {f"{name}_{key}": f"{numbers[key]:,}" for key in ("cases", "caught", "missed", "nothing")}
