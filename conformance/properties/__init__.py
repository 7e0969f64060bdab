"""Properties: what holds between calls of one implementation, tried on random problems (``--fuzz N``)."""
