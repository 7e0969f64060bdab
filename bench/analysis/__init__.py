"""Analysis of samples: intervals, ratios, verdicts, growth with the length, and the overhead of timing."""
