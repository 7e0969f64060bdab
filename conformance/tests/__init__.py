"""Tests of the suite itself: the reference, the bounds, the judge, and whatever else decides pass or fail."""
