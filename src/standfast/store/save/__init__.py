"""Saving a checkpoint: plan, data files, ranks, and the commit."""
