"""Loading a checkpoint: which one, which bytes, and into which tensors."""
