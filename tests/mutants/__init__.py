"""Mutants: the product, broken in chosen places, one at a time, to see that the tests notice."""
