"""Optimisers that need no gradients."""
