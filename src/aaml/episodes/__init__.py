"""Compiled engines: whole traces and whole episodes at once, equal to `SimCluster` to the bit."""
