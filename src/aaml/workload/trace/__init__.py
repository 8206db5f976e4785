"""Traces: what happened on a cluster, recorded or converted, as a portable and append-only folder of events."""
