"""BOUNDS.md: a page of words, page.md, with the numbers of evidence.json set in."""

from __future__ import annotations

import string
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from conformance.evidence import record, tables

WORDS = Path(__file__).with_name("page.md")
PAGE = record.EVIDENCE.with_name("BOUNDS.md")


def write(evidence: Path = record.EVIDENCE) -> Path:
    """Write the page beside the evidence, and say where."""
    page = evidence.with_name(PAGE.name)
    page.write_text(render(record.read(evidence)), encoding="utf-8")
    return page


def render(evidence: dict[str, Any]) -> str:
    """The page.  Raises KeyError for a number that the words name and the evidence lacks."""
    parts = evidence["series"]
    every = [row for part in parts.values() for row in part["rows"]]
    values = {
        "all_problems": f"{sum(part['problems'] for part in parts.values()):,}",
        "all_judged": f"{sum(row['judged'] for row in every):,}",
        "all_alarms": str(sum(row["alarms"] for row in every)),
        "seed": str(evidence["seed"]),
        "overview": tables.overview(parts),
        "records": tables.records(parts.values()),
        "made": "\n".join(made(name, part) for name, part in parts.items()),
        **_counts("float32", parts["sdpa"]["float32"]["cases"]),
        **_counts("random", parts["sdpa"]["float32"]["problems"]),
    }
    for name, part in parts.items():
        values |= {f"{name}_{key}": value for key, value in numbers(part).items()}
    return string.Template(WORDS.read_text(encoding="utf-8")).substitute(values)


def numbers(part: dict[str, Any]) -> dict[str, str]:
    """What the words may say of a series."""
    return {
        "problems": f"{part['problems']:,}",
        "judged": f"{sum(row['judged'] for row in part['rows']):,}",
        "alarms": str(sum(row["alarms"] for row in part["rows"])),
        "caught": tables.power(max(row["smallest"] for row in _float32_wide(part["sensitivity"]))),
        "dtypes": ", ".join(f"{count:,} are in {dtype}" for dtype, count in part["drawn"]["dtypes"].items()),
        "sizes": tables.sizes(part),
        "options": tables.options(part),
        "fewer": ", ".join(f"`{name}` gets every {_nth(n)}" for name, n in part["every"].items()),
        "libraries": tables.libraries(part),
        "variants": tables.variants(part),
        "excluded": tables.excluded(part),
        "sensitivity": tables.small(part),
    }


def made(name: str, part: dict[str, Any]) -> str:
    """What a series was measured with."""
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
