"""Evidence for the error bounds: random problems on correct implementations, and how small an error still shows.

``attention-conformance evidence`` writes evidence.json.zst and, from it, BOUNDS.md.
"""
