"""Judging: the reply to a case is compared with what is expected, and a failure put into words."""
