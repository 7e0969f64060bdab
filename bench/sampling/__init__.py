"""Calls of the bench in their worker: inputs that rotate, clocks, cold caches."""
