"""Test vectors: the cases as files for other languages and machines, and the judging of results from there."""

#: Version of the layout of these files, as VECTORS.md describes it.
FORMAT = 1
