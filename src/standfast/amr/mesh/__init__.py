"""The mesh: blocks, keys, fields and links, and kernels that update them."""
