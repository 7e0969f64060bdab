"""Workloads: their names, arguments, operations and bytes, and the presets."""
