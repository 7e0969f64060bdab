"""How cells went over many runs: ``attention-conformance history FOLDER -o DIR``."""
