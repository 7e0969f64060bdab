"""Memory of a call: predicted and measured."""
