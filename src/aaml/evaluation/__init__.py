"""Policies evaluated on the same episodes: results, statistics, tables, figures and bounds."""
