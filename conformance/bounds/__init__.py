"""Error bounds: how far a correct result may be from the reference, element by element, operator by operator."""
