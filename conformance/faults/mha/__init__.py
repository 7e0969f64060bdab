"""Faults of the multi-head layer and its sub-layer: MHA, SUB."""
