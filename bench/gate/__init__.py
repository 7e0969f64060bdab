"""Gate: one verdict on a kernel that nobody wrote by hand: accepted, rejected, or cannot tell."""
