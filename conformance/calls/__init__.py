"""Calls that a user made, with their results, as cases that the suite's judge compares."""
