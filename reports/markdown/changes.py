"""Changes since a base run, as Markdown: the verdict for the first lines, and the tables behind it."""

from __future__ import annotations

from attention_conformance.bench.analysis.statistics import Verdict
from attention_conformance.reports.compare import pages
from attention_conformance.reports.compare.changes import Comparison, Level
from attention_conformance.reports.text import fold, inert, table

#: Rows of a table of the page.
SHOWN = 30


def verdict(found: Comparison) -> str:
    """One paragraph: the verdict with its counts, what could not be compared, and the rules."""
    said = [
        pages.headline(found),
        *([pages.summary_sentences(found)] if pages.summary_sentences(found) not in pages.headline(found) else []),
    ]
    said += [f"cannot tell: {why}" for why in found.unfit]
    said = [f"{text[:1].upper()}{text[1:]}" for text in (*said, *pages.rules(found))]
    return f"**Since the base run**: {'. '.join(map(inert, said))}."


def sections(found: Comparison) -> list[str]:
    """Sections: what is worse, what is slower or faster, then everything else, and how it was judged."""
    parts = []
    for title, frame in (
        ("Worse", pages.changes(found.changes, [Level.WORSE])),
        ("Slower or faster", pages.speeds(found, [Verdict.SLOWER, Verdict.FASTER]).drop(columns="why unclear")),
        ("Better, neither or ignored", pages.changes(found.changes, [Level.BETTER, Level.NOTE, Level.IGNORED])),
    ):
        if not frame.empty:
            more = f"\n\n{len(frame) - SHOWN} more are on the HTML page." if len(frame) > SHOWN else ""
            parts.append(fold(f"{title}: {len(frame)}", table(frame.head(SHOWN)) + more))
    if pages.unclear(found):
        parts.append(inert(pages.unclear(found)))
    how = [*pages.rule(found), *found.notes]
    return [*parts, "\n\n".join(map(inert, how))] if how else parts
