"""Faults of attention: SDPA."""
