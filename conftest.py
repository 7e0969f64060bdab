"""Lets ``pytest`` find the suite's plugin in a checkout that is not installed."""

pytest_plugins = ["conformance.plugin"]
