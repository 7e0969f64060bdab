"""Validity of a timing: right results, and no cheating."""
