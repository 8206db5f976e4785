"""Everything that decides without torch, and the table of names."""
