"""A page as one file: a template over the common base, with its style, scripts, data and a policy that fits them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from attention_conformance.reports.html import payload
from attention_conformance.reports.html.bundle import Bundle

TEMPLATES = Path(__file__).with_name("templates")


def rendered(template: str, scripts: Sequence[str], bundle: Bundle, shown: Mapping[str, Any]) -> str:
    """A template of the folder, filled in; only its scripts, in this order, and those of the bundle may run."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    texts = [Markup((TEMPLATES / name).read_text(encoding="utf-8")) for name in scripts]  # noqa: S704 (our own)
    style = Markup((TEMPLATES / "style.css").read_text(encoding="utf-8"))  # noqa: S704 (our own)
    vega = bundle.text()
    hashes = Markup(" ".join(f"'sha256-{_hash(text)}'" for text in (*texts, vega)))  # noqa: S704 (base64)
    fixed = {"style": style, "scripts": texts, "vega": payload.compressed(vega), "hashes": hashes}
    return environment.get_template(template).render(**shown, **fixed)


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
