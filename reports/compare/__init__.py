"""What changed between two runs: ``attention-conformance compare BASE NEW``."""
