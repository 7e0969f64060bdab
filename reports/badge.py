"""A badge for a README: what an implementation may call itself, as a small SVG that needs no network and no font."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from attention_conformance.conformance.judging.features import Claim, Standing, claims
from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.reports.model.model import Model

#: The left half.
LABEL = "attention"

#: Names of features that a badge shows; the others are counted.
NAMES = 3

#: Pixels of a character of Verdana at 11 px, by how wide it is; ``textLength`` makes any font as wide.
_NARROW, _WIDE, _OTHER = 4.2, 9.3, 7.0
_PADDING = 6

#: Dark enough for white text (WCAG AA: contrast of 4.5 at least).
GREEN, RED, AMBER, GREY = "#1a7f37", "#cf222e", "#9a6700", "#57606a"

_SVG = """<svg xmlns="http://www.w3.org/2000/svg" width="{whole}" height="20" role="img" aria-label="{label}: {text}">
<title>{label}: {text}</title>
<clipPath id="r"><rect width="{whole}" height="20" rx="3"/></clipPath>
<g clip-path="url(#r)"><rect width="{left}" height="20" fill="#444c56"/>
<rect x="{left}" width="{right}" height="20" fill="{colour}"/></g>
<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,Geneva,sans-serif" font-size="11">
<text x="{left_middle}" y="14" textLength="{left_text}">{label}</text>
<text x="{right_middle}" y="14" textLength="{right_text}">{text}</text></g>
</svg>
"""


def badges(model: Model) -> dict[str, str]:
    """An SVG by file name for every implementation, and for each of its devices where it has several."""
    found = claims(model.records.results)
    devices = model.results.groupby("implementation", sort=False)["device"].nunique()
    made: dict[str, str] = {}
    for row in model.implementations.to_dict("records"):
        who = row["implementation"], row["device"]
        base = _file("-".join(who) if devices[who[0]] > 1 else who[0])
        name, number = base, 2
        while name in made:
            name, number = f"{base}-{number}", number + 1
        made[name] = svg(*badge_text(found.get(who, ()), row[Outcome.FAILED.value], row[Outcome.KNOWN_DEVIATION.value]))
    return made


def badge_text(group: Sequence[Claim], failed: int, deviating: int) -> tuple[str, str]:
    """The right half and its colour: failures first, then what it conforms to and how often it deviates."""
    if failed:
        return f"{failed} failed", RED
    names = [claim.feature for claim in group if claim.standing is Standing.CONFORMANT]
    more = f" +{len(names) - NAMES}" if len(names) > NAMES else ""
    text = f"conformant: {', '.join(names[:NAMES])}{more}" if names else "conformant to no whole feature"
    if deviating:
        return f"{text} · {deviating} deviate", AMBER
    return text, GREEN if names else GREY


def svg(text: str, colour: str, label: str = LABEL) -> str:
    """The picture."""
    left, right = (round(_width(part)) + 2 * _PADDING for part in (label, text))
    return _SVG.format(
        label=escape(label),
        text=escape(text),
        colour=colour,
        whole=left + right,
        left=left,
        right=right,
        left_middle=left / 2,
        right_middle=left + right / 2,
        left_text=left - 2 * _PADDING,
        right_text=right - 2 * _PADDING,
    )


def _width(text: str) -> float:
    return sum(_NARROW if one in "fijlrt,.:;+-| '()·" else _WIDE if one in "mwMW" else _OTHER for one in text)


def _file(name: str) -> str:
    """A name that is valid for a file on any system and contains no path."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:100] or "implementation"
