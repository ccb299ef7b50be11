"""`standfast train`: the LeNet trainer and its display."""
