"""Faults of the forms that serve: packed sequences, paged caches, partial results."""
