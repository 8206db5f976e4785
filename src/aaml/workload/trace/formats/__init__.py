"""Public traces and other files, read as what happened on a cluster: `known` lists the formats."""
