"""Roofline: the costs of a workload, and the limits of a machine."""
