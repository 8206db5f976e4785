"""What a run leaves behind or shows: TensorBoard, JSON lines, logging, progress, tables."""
