"""Networks, losses and learners: the only package that imports torch."""
