"""Work dealt out over processes of this machine or a Ray cluster."""
