"""COVERAGE.md: what the cases at the sizes of kernels reach, counted from the design, the paths and their faults."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tabulate import tabulate

from attention_conformance.conformance.cases import kernels
from attention_conformance.conformance.cases.design import Coverage
from attention_conformance.conformance.cases.kernel_paths import Call, kernel_paths
from attention_conformance.conformance.faults.paths import PATH_FAULTS

PAGE = Path(__file__).parents[2] / "COVERAGE.md"

OPENING = (
    "# Sizes where kernels break: what the cases reach\n\n"
    "Written by `attention-conformance pages`; `conformance/kernel_paths.toml` has the paths, "
    "`conformance/cases/kernels.py` the cases.\n\n"
    "A case is a row of a covering design: query length, key length, width, group, key heads, batch, options, dtype, "
    "and whether lse is asked for. Every two values meet in some row, and so do every three that a block names, unless "
    "the row would cost more than the block's limit (too large: with the cheapest of all other parts) or is no row of "
    "the block (refused: in the square block, two lengths that differ)."
)


def text() -> str:
    """The page."""
    cases = list(kernels.cases())
    parts = [OPENING, f"{len(cases)} cases: {_by_block([case.name for case in cases])}."]
    for name, block in kernels.BLOCKS.items():
        rows, coverage = kernels.designed(name).rows, kernels.designed(name).coverage
        parts += [
            f"## {name}",
            f"{block.why}. {len(rows)} rows of a cost of at most {block.factors.limit:,} multiplications, "
            f"{sum(row.cost for row in rows) / 1e6:.0f} million together. {_reached(coverage)}",
            _table(coverage),
        ]
    return "\n\n".join([*parts, "## Paths", _paths([kernels.call_of(case) for case in cases])]) + "\n"


def _by_block(names: list[str]) -> str:
    counted = Counter(name.split("-")[1] for name in names)
    return ", ".join(f"{count} {name}" for name, count in counted.items())


def _reached(coverage: tuple[Coverage, ...]) -> str:
    """Pairs and triples, in a sentence each."""
    sentences = []
    for strength, word in ((2, "pairs"), (3, "triples")):
        found = [each for each in coverage if len(each.parts) == strength]
        total, reached = sum(each.total for each in found), sum(each.reached for each in found)
        sentences.append(f"{reached:,} of {total:,} {word}.")
    return " ".join(sentences)


def _table(coverage: tuple[Coverage, ...]) -> str:
    """Triples, and the pairs that are not all reached."""
    shown = [each for each in coverage if len(each.parts) > 2 or each.reached < each.total]
    body = [(" × ".join(each.parts), each.total, each.reached, each.too_large, each.refused) for each in shown]
    return tabulate(body, ("parts", "combinations", "reached", "too large", "refused"), tablefmt="pipe")


def _paths(calls: list[Call]) -> str:
    """Each path with its source, the cases that take it, and its faults."""
    faults = Counter(fault.sources[0].partition(" ")[2] for fault in PATH_FAULTS.values())
    body = [
        (
            f"[{path.id}]({path.link})",
            path.kernel,
            path.what,
            ", ".join(each.text for each in path.when),
            sum(path.taken(call) for call in calls),
            faults[path.id],
        )
        for path in kernel_paths().values()
    ]
    kernels_of = {path.kernel for path in kernel_paths().values()}
    opening = f"{len(body)} paths of {len(kernels_of)} kernels, {len(PATH_FAULTS)} faults."
    return opening + "\n\n" + tabulate(body, ("path", "kernel", "what", "when", "cases", "faults"), tablefmt="pipe")


def write(page: Path = PAGE) -> str:
    """Write the page; returns where it is."""
    page.write_text(text(), encoding="utf-8")
    return str(page)
