"""Formulas: policies that a person can read, an expression of named features that scores each node."""
