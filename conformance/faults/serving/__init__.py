"""Faults of the operators that serving engines call: packed sequences, paged caches, latent attention."""
