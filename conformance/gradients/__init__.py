"""Gradients of the operators: their reference, how far a result may be from it, and the clauses GRAD-…."""
