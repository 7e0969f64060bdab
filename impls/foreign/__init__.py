"""Plug-ins that are not Python functions: a program in any language, and a model in a file (impls/PLUGINS.md)."""
