"""Paired comparison: two revisions or two environments, alive at the same time, timed in rounds of milliseconds."""
