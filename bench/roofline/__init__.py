"""Roofline: what a workload costs, and what a machine can do at most."""
