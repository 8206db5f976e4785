"""Tables of results that were written before."""
