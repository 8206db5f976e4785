"""The observers of a live scheduler: what it decides, what becomes of it, what it learns."""
