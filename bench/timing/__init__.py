"""Timing: plan, session, protocol, sampler and clocks."""
