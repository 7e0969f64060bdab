"""Bench: workloads, the timing protocol, and the tests that pytest-benchmark runs."""
