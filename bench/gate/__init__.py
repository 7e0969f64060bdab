"""Gate: one verdict on a kernel that was not written by hand: accepted, rejected, or cannot tell."""
