"""Table of bench/GATE.md: every cheat with its source, and the reason that rejects it.

``python -m attention_conformance.bench.tests.gate_page`` writes it again.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "GATE.md"
BEGIN, END = "<!-- cheats: begin -->\n", "<!-- cheats: end -->\n"


def table() -> str:
    """The rows, from cheats.toml; a reason without words is any."""
    cheats = tomllib.loads(Path(__file__).with_name("cheats.toml").read_text(encoding="utf-8"))["cheat"]
    rows = ["| cheat | what it does | rejected with | source |", "|---|---|---|---|"]
    for each in cheats:
        source = each["source"]
        linked = f"[{source.removeprefix('https://')}]({source})" if source.startswith("http") else source
        reason = f"`{each['reason']}`" if each["reason"] else "wrong answers"
        rows.append(f"| {each['name']} | {each['what']} | {reason} | {linked} |")
    return "\n".join(rows) + "\n"


def page(text: str) -> str:
    """The page with the table of today."""
    head, _, rest = text.partition(BEGIN)
    return head + BEGIN + table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
