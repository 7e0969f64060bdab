"""Claims: the features that implementations may claim, in words, and whether they meet ``--require``.

A few implementations get a sentence each; many get a table.  A feature is not claimed if the run left out cases of it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from tabulate import tabulate

from attention_conformance.conformance.judging.features import FEATURES, Claim, Standing, claims
from attention_conformance.conformance.judging.outcomes import Result
from attention_conformance.impls.contract import ImplementationError
from attention_conformance.impls.loading import nearest

#: Most columns of a line.
COLUMNS = 100

#: More implementations than this are shown as a table.
SENTENCES = 4

HEADERS = ("implementation", "device", "conformant", "not to; in part; unsupported")

#: Value of ``--require`` for every feature.
ALL = "all"

#: Names are not broken across lines.
_WHOLE: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}

#: Spaces that tabulate puts between two columns, and that it adds to a column's header.
_BETWEEN = _PADDING = 2


def claim_lines(results: Sequence[Result]) -> list[str]:
    """Claims of each implementation, in lines of up to COLUMNS characters; none where nothing was judged.

    Parameters
    ----------
    results
        Results of any number of implementations and devices.

    Returns
    -------
    list[str]
        One wrapped sentence for each implementation and device, or the lines of a table.
    """
    found = claims(results)
    dtypes: dict[tuple[str, str], dict[str, None]] = {}
    for result in results:
        dtypes.setdefault((result.implementation, result.device), {})[result.dtype] = None
    if len(found) > SENTENCES:
        told = {key: group for key, group in found.items() if claim_text(group)}
        return _table(told).splitlines() if told else []
    lines = []
    for (name, device), group in found.items():
        if text := claim_text(group):
            lines += wrapped(f"{name} on {device} in {', '.join(dtypes[name, device])}: {text}")
    return lines


def wrapped(text: str) -> list[str]:
    """A sentence in lines of up to COLUMNS characters, broken between words.

    Parameters
    ----------
    text
        One sentence.

    Returns
    -------
    list[str]
        Lines; those after the first are indented.
    """
    return textwrap.wrap(text, COLUMNS, subsequent_indent="  ", **_WHOLE)


def claim_text(group: Iterable[Claim]) -> str:
    """The claims of one implementation in a sentence: "conformant to core, causal (412 of 412); not to …".

    Empty where no feature was judged in full, and none failed.

    Parameters
    ----------
    group
        Claims of one implementation on one device.

    Returns
    -------
    str
        One sentence.
    """
    by: dict[Standing, list[Claim]] = {standing: [] for standing in Standing}
    for claim in group:
        by[claim.standing].append(claim)
    conformant = by[Standing.CONFORMANT]
    total = sum(claim.cases for claim in conformant)
    names = ", ".join(claim.feature for claim in conformant)
    parts = [f"conformant to {names} ({total} of {total})"] if conformant else []
    parts += [text] if (text := _others(by, _feature_count, "{0.feature} ({0.cases})")) else []
    unjudged = len(by[Standing.UNJUDGED])
    if not conformant and not unjudged:
        parts.insert(0, "conformant to nothing")
    elif parts and unjudged:
        parts.append(f"{unjudged} feature{'s' if unjudged > 1 else ''} not judged in full")
    return "; ".join(parts)


def _others(by: Mapping[Standing, Sequence[Claim]], of: Callable[[Claim], str], unsupported: str) -> str:
    texts = {
        "not to": [of(c) for c in by[Standing.NOT]],
        "in part": [of(c) for c in by[Standing.PART]],
        "unsupported:": [unsupported.format(c) for c in by[Standing.UNSUPPORTED]],
    }
    return "; ".join(f"{lead} {', '.join(each)}" for lead, each in texts.items() if each)


def _feature_count(claim: Claim) -> str:
    return f"{claim.feature} ({_count(claim)})"


def _count(claim: Claim) -> str:
    if claim.judged < claim.cases:
        return f"{claim.failed} failed of {claim.judged} judged"
    return f"{claim.kept} of {claim.cases}"


def _short(claim: Claim) -> str:
    cut = f", {claim.failed} failed" if claim.judged < claim.cases else ""
    return f"{claim.feature} {claim.kept}/{claim.cases}{cut}"


def _table(found: Mapping[tuple[str, str], Sequence[Claim]]) -> str:
    """A table with a row per implementation and device; the last column is wrapped to the rest of the line."""
    leads = [(name, device, _conformant_count(group)) for (name, device), group in found.items()]
    widths = [max(len(HEADERS[i]) + _PADDING, *(len(row[i]) for row in leads)) for i in range(len(HEADERS) - 1)]
    left = max(COLUMNS - sum(widths) - _BETWEEN * len(widths), len(HEADERS[-1]))
    rows = []
    for lead, group in zip(leads, found.values(), strict=True):
        by = {standing: [c for c in group if c.standing is standing] for standing in Standing}
        cell = textwrap.fill(
            _others(by, _short, "{0.feature} {0.cases}"), left, break_long_words=False, break_on_hyphens=False
        )
        rows.append((*lead, cell))
    return tabulate(rows, HEADERS, tablefmt="simple", disable_numparse=True, colalign=("left", "left", "right", "left"))


def _conformant_count(group: Sequence[Claim]) -> str:
    judged = [claim for claim in group if claim.standing is not Standing.UNJUDGED]
    return f"{sum(claim.standing is Standing.CONFORMANT for claim in judged)} of {len(group)}"


def required(texts: Iterable[str], option: str = "--require ") -> tuple[str, ...]:
    """The features that texts name, separated by commas.

    Parameters
    ----------
    texts
        Names of features, separated by commas.
    option
        The option's name, for the message.

    Returns
    -------
    tuple[str, ...]
        The names, each once.

    Raises
    ------
    ImplementationError
        For an unknown feature.
    """
    names = [name.strip() for text in texts for name in text.split(",")]
    for name in names:
        if name not in FEATURES and name != ALL:
            raise ImplementationError(f"{option}{name}: no such feature{nearest(name, (*FEATURES, ALL))}")
    return tuple(dict.fromkeys(names))


def shortcomings(names: Sequence[str], results: Iterable[Result], not_installed: Collection[str]) -> list[str]:
    """One line per unmet requirement: an implementation of its operator does not meet it, or there is none.

    Parameters
    ----------
    names
        Names of features.
    results
        Results of any number of implementations and devices.
    not_installed
        Implementations whose packages are absent.

    Returns
    -------
    list[str]
        Empty where all are met.
    """
    if not names:
        return []
    found = claims(results)
    lines = [f"{name} is not installed, so no requirement can be checked" for name in not_installed]
    for feature in names:
        if feature != ALL and not any(c.feature == feature for group in found.values() for c in group):
            lines.append(f"{feature} is required, but no judged implementation could have it")
    if ALL in names and not found:
        lines.append("all features are required, but nothing was judged")
    for (implementation, device), group in found.items():
        short = [c for c in group if (ALL in names or c.feature in names) and c.standing is not Standing.CONFORMANT]
        lines += [f"{implementation} on {device}: {c.feature} is required, but is {_missing(c)}" for c in short]
    return lines


def _missing(claim: Claim) -> str:
    texts = {
        Standing.NOT: f"not kept ({_count(claim)})",
        Standing.PART: f"kept in part ({_count(claim)}; {claim.unsupported} unsupported)",
        Standing.UNSUPPORTED: f"unsupported ({claim.cases} of {claim.cases})",
        Standing.UNJUDGED: f"not judged in full ({claim.judged} of {claim.cases})",
    }
    return texts[claim.standing]
