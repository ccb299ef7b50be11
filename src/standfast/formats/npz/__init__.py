"""NumPy's `.npz` and the `.npy` headers in it."""
