"""How cells went over many runs: ``python -m reports history FOLDER -o DIR``."""
