"""Staging: shared memory that holds a copy of the state while it is written."""
