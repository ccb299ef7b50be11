"""`.sunc` checkpoints, byte for byte those of the original."""
