"""Faults of decoding, with past keys and values: DEC."""
