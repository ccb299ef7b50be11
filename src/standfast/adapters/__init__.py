"""One module a framework: its tensors as sources of bytes, and arrays as its tensors."""
