"""Studies: experiments on the suite itself, each ``python -m studies NAME``, with their numbers in ``data``."""
