"""Operators in steps, all correct, of which faults are subclasses."""
