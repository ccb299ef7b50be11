"""Checkpoints that enter or leave a store: push and pull, export, import."""
