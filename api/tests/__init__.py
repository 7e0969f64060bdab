"""Tests of the package as a whole: the command, the plugin's entry point, the wheel, and another repository."""
