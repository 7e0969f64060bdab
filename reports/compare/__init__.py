"""What changed between two runs: ``python -m reports compare BASE NEW``."""
