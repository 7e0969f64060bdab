"""Property tests: random problems, and what must hold between the results of two or more calls.

``pytest conformance --fuzz N`` draws N problems for every property of every target.  hypothesis draws and shrinks
them; it is imported by the modules of this folder, and these only where ``--fuzz`` is given.
"""
