"""Judging: a case is run on a target, its reply compared with what is expected, and a failure put into words."""
