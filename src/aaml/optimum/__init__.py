"""What is best where everything is known beforehand: solvers, an offline packing, and bounds that nothing passes."""
