"""Benchmarks with a fixed protocol, and trials on real clusters."""
