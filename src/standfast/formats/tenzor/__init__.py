"""The `.tenzor` format."""
