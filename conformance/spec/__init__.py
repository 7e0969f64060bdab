"""The spec in code: the clauses, the reference of every operator in float64, and examples computed by hand."""
