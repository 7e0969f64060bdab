"""sdpa."""
