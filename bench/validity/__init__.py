"""validity."""
