"""Snapshots: the state of a simulation in a store, restored exactly."""
