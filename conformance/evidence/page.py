"""BOUNDS.md: the text of page.md with the tables and numbers of evidence.json.zst filled in."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from attention_conformance.conformance.bounds.sdpa import profiles
from attention_conformance.conformance.evidence import record
from attention_conformance.conformance.evidence.sensitivity import DTYPES

WORDS = Path(__file__).with_name("page.md")
PAGE = record.EVIDENCE.with_name("BOUNDS.md")

#: Reason that excludes a problem, and is not a record of a library's deviation.
OUT_OF_RANGE = "a number that the program may store is beyond the dtype's largest: nothing is promised"

#: Headers of the two tables of implementations.
JUDGED = ("dtype", "profile", "judged", "false alarms", "median share", "largest share", "stricter profiles kept")


def table(header: Sequence[str], rows: Sequence[Sequence[Any]], align: str) -> str:
    """A Markdown table; ``align`` has an l or an r for each column."""
    sides = ["right" if letter == "r" else "left" for letter in align]
    return tabulate(rows, header, tablefmt="pipe", disable_numparse=True, colalign=sides)


def power(number: float) -> str:
    """1.2e-05 as 1.2 · 10⁻⁵."""
    mantissa, _, exponent = f"{number:.1e}".partition("e")
    return f"{mantissa} · 10{str(int(exponent)).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


def fields(part: dict[str, Any]) -> str:
    """Table of fields: how many problems give each, and the range of its numbers."""
    header, of = ("field", "problems", "share", "smallest", "largest"), part["problems"]
    body = [
        (f"`{name}`", f"{each['given']:,}", f"{each['given'] / of:.0%}", *_ends(each))
        for name, each in part["drawn"]["fields"].items()
    ]
    return table(header, body, "lrrrr")


def _ends(field: dict[str, Any]) -> tuple[str, ...]:
    return tuple("" if field[name] is None else f"{field[name]:g}" for name in ("smallest", "largest"))


def libraries(part: dict[str, Any]) -> str:
    """Table of the problems on the implementations of libraries."""
    rows = [row for row in part["rows"] if not row["variant"]]
    body = [(*_verdict_row(row), f"{row['unsupported']:,}", f"{sum(row['known'].values()):,}") for row in rows]
    return table(("implementation", *JUDGED, "unsupported", "excluded"), body, "lllrrrrlrr")


def variants(part: dict[str, Any]) -> str:
    """Table of the problems on the honest variants."""
    rows = [row for row in part["rows"] if row["variant"]]
    body = [(*_verdict_row(row), f"{sum(row['known'].values()):,}") for row in rows]
    return table(("variant", *JUDGED, "excluded"), body, "lllrrrrlr")


def _verdict_row(row: dict[str, Any]) -> tuple[str, ...]:
    strict = list(row["meets"])[: list(row["meets"]).index(row["profile"])]
    kept = ", ".join(f"{name} {row['meets'][name] / row['judged']:.0%}" for name in strict if row["judged"])
    shares = ("–" if row[name] is None else f"{row[name]:.3g}" for name in ("median", "largest"))
    counts = (f"{row['judged']:,}", str(row["alarms"]))
    return (f"`{row['implementation']}`", row["dtype"], row["profile"], *counts, *shares, kept or "–")


def excluded(part: dict[str, Any]) -> str:
    """Table of records and how many problems each excludes."""
    counts: Counter[tuple[str, str]] = Counter()
    for row in part["rows"]:
        for records, count in row["known"].items():
            counts[row["implementation"], records] += count
    body = [(f"`{name}`", records, f"{count:,}") for (name, records), count in counts.items()]
    return table(("implementation", "record, or records together", "problems"), body, "llr")


def records(parts: Iterable[dict[str, Any]]) -> str:
    """Table of the records that excluded a problem of any part."""
    known: dict[str, dict[str, Any]] = {}
    for part in parts:
        met = {name for row in part["rows"] for names in row["known"] for name in names.split(", ")}
        unknown = {"clause": "SDPA-26", "instead": OUT_OF_RANGE}
        known |= {name: part["deviations"].get(name, unknown) for name in met}
    body = [(name, known[name]["clause"], known[name]["instead"]) for name in sorted(known)]
    return table(("record", "clause", "what happens"), body, "lll")


def small(part: dict[str, Any]) -> str:
    """Table of the smallest error of each quantity that is caught, by dtype and profile."""
    groups: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row in part["sensitivity"]:
        groups.setdefault((row["dtype"], row["profile"]), {})[row["quantity"]] = row
    names = list(next(iter(groups.values())))
    body = [
        (dtype, profile, max(row["cases"] for row in group.values()), *(_pair(group[name]) for name in names))
        for (dtype, profile), group in groups.items()
    ]
    return table(("dtype", "profile", "cases", *names), body, "llr" + "r" * len(names))


def _pair(row: dict[str, Any]) -> str:
    smallest = "–" if row["smallest"] is None else power(row["smallest"])
    return f"{smallest} ({'–' if row['median'] is None else power(row['median'])})"


def overview(parts: dict[str, dict[str, Any]]) -> str:
    """Table with one row for each series, dtype and profile, over everything that was judged under it."""
    body = []
    for name, part in parts.items():
        groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for row in part["rows"]:
            groups.setdefault((row["dtype"], row["profile"]), []).append(row)
        for (dtype, profile), rows in sorted(groups.items(), key=lambda item: _order(*item[0])):
            medians = sorted(row["median"] for row in rows if row["median"] is not None)
            largest = max((row["largest"] for row in rows if row["largest"] is not None), default=None)
            judged, alarms = (sum(row[key] for row in rows) for key in ("judged", "alarms"))
            ends = dict.fromkeys(f"{median:.2g}" for median in (medians[:1] + medians[-1:]))
            span = " to ".join(ends) or "–"
            body.append((f"`{name}`", dtype, profile, f"{judged:,}", alarms, span, "–" if largest is None else largest))
    header = ("series", "dtype", "profile", "judged", "false alarms", "medians", "largest share")
    return table(header, [tuple(map(str, row)) for row in body], "lllrrrr")


def _order(dtype: str, profile: str) -> tuple[int, int]:
    return DTYPES.index(dtype), [each.value for each in profiles(dtype)].index(profile)


def write(evidence: Path = record.EVIDENCE) -> Path:
    """Write the page next to the evidence, and return its path.

    Parameters
    ----------
    evidence
        The compressed file that the page is made from.

    Returns
    -------
    Path
        The path of the page.
    """
    page = evidence.with_name(PAGE.name)
    page.write_text(render(record.read(evidence)), encoding="utf-8")
    return page


def render(evidence: dict[str, Any]) -> str:
    """The page.  Raises KeyError for a number that page.md names and the evidence lacks."""
    parts = evidence["series"]
    every = [row for part in parts.values() for row in part["rows"]]
    values = {
        "all_problems": f"{sum(part['problems'] for part in parts.values()):,}",
        "all_judged": f"{sum(row['judged'] for row in every):,}",
        "all_alarms": str(sum(row["alarms"] for row in every)),
        "seed": str(evidence["seed"]),
        "overview": overview(parts),
        "records": records(parts.values()),
        "made": "\n".join(measured_with(name, part) for name, part in parts.items()),
        **_counts("float32", parts["sdpa"]["float32"]["cases"]),
        **_counts("random", parts["sdpa"]["float32"]["problems"]),
    }
    for name, part in parts.items():
        values |= {f"{name}_{key}": value for key, value in numbers(part).items()}
    return string.Template(WORDS.read_text(encoding="utf-8")).substitute(values)


def numbers(part: dict[str, Any]) -> dict[str, str]:
    """Numbers of a series that page.md may name."""
    return {
        "problems": f"{part['problems']:,}",
        "judged": f"{sum(row['judged'] for row in part['rows']):,}",
        "alarms": str(sum(row["alarms"] for row in part["rows"])),
        "caught": power(max(row["smallest"] for row in _float32_wide(part["sensitivity"]))),
        "dtypes": ", ".join(f"{count:,} are in {dtype}" for dtype, count in part["drawn"]["dtypes"].items()),
        "drawn": fields(part),
        "fewer": ", ".join(f"`{name}` gets every {_nth(n)}" for name, n in part["every"].items()),
        "libraries": libraries(part),
        "variants": variants(part),
        "excluded": excluded(part),
        "sensitivity": small(part),
    }


def measured_with(name: str, part: dict[str, Any]) -> str:
    """Line with the versions and the system that a series was measured with."""
    versions = ", ".join(f"{package} {version}" for package, version in part["versions"].items())
    machine = part["machine"]
    return f"* `{name}`: {versions}; Python {machine['python']} on {machine['system']}."


def _nth(number: int) -> str:
    return f"{number}{'th' if number % 100 in (11, 12, 13) else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def _float32_wide(rows: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    return (row for row in rows if (row["dtype"], row["profile"]) == ("float32", "wide"))


def _counts(name: str, counts: dict[str, int]) -> dict[str, str]:
    numbers = {"cases": sum(counts.values()), "nothing": counts["float32"], **counts}
    return {f"{name}_{key}": f"{numbers[key]:,}" for key in ("cases", "caught", "missed", "nothing")}
