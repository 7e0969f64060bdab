"""Faults of backward passes, of attention, the layer, merges and packs: GRAD."""
