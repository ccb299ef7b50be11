"""The safetensors format."""
