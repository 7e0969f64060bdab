"""Tests of the bench: names, checks, predictions, protocol, and the command itself."""
