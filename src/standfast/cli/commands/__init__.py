"""The commands, one module or folder each."""
