"""Output of a run: records, checkpoint, progress and the terminal's table."""
