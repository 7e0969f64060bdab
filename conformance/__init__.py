"""Conformance: the spec, the reference, hand-computed examples, cases, error bounds, and their tests."""

#: Version of SPEC.md; results name it, and results of different versions are not compared.
SPEC_VERSION = "1"
