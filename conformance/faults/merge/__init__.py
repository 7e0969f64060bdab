"""Faults of merging partial results."""
