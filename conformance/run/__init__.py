"""A run under pytest: selected, judged in parallel or spread over processes and machines, recorded and reported."""
