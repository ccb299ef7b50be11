"""A state as data: plain values as JSON, tensors by reference, aliases."""
