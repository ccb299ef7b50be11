"""The `OXCK` format."""
