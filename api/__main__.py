"""``python -m attention_conformance``: the same as the command ``attention-conformance``."""

from __future__ import annotations

import sys

from attention_conformance.cli import main

if __name__ == "__main__":
    sys.exit(main())
