"""Property tests (``--fuzz N``): what follows from the spec for random problems, and how a failure is shrunk."""
