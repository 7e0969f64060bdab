"""Duets: two revisions or two environments, alive at the same time, timed in turns of a few milliseconds."""
