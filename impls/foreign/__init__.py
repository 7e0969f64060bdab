"""What is plugged in and is no Python function: a program in any language, and a model in a file (impls/PLUGINS.md)."""
