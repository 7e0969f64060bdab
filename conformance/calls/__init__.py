"""Calls that somebody made, with what came of them, as cases that the judge of the suite compares."""
