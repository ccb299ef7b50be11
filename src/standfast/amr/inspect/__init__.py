"""Saved trees as `show`, `diff` and `verify --logical` see them."""
