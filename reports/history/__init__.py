"""History of cells over many runs: ``attention-conformance history FOLDER -o DIR``."""
