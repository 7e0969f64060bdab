"""Correct operators, split into steps; faults are their subclasses."""
