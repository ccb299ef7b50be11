"""Packages in a store: saved as a run, exported from any checkpoint that has the weights."""
