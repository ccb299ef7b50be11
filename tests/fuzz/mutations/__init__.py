"""Changes to a file, from single bits to the meaning of what stands in it."""
