"""Faults of backward passes, of attention and of the layer: GRAD."""
