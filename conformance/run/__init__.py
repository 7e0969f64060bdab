"""A run under pytest: planned, judged in parallel or spread over processes and machines, recorded and reported."""
