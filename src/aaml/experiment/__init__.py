"""Configurations, runs, statistics and reports: where the parts are put together."""
