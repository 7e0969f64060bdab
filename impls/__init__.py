"""Implementations: the contract, the frameworks' arrays, worker processes, and a file per built-in."""
