"""Adapters of real device kernels that other packages ship, one small file each.

They are plugged in by module, ``attention_conformance.impls.kernels.pallas_gpu:mha@pallas``, and are no part of a run
of the built-in implementations.  An adapter translates names and layouts, and says what a kernel takes; no source of a
kernel is here.
"""
