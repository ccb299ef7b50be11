"""Refining and coarsening blocks."""
