"""Diagnosis: which stage of a failed computation went wrong, and which known mistake gives its result."""
