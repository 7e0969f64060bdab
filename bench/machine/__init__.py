"""Machine: its fingerprint, its roofline, and the state of its GPUs."""
