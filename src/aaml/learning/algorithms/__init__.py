"""What changes a network: an algorithm a module, its update of tensors on one screen."""
