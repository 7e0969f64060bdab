"""Comparison of two runs: ``attention-conformance compare BASE NEW``."""
