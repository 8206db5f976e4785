"""Traces and the data they come from."""
