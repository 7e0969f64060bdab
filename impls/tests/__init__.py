"""Tests of the contract, of selection, isolation and calls, and of each framework's implementations."""
