"""Checking a store: verify, repair, and a digest that does not depend on the ranks."""
