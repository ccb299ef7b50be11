"""The index of a store: a cache that can be rebuilt from the records at any time."""
