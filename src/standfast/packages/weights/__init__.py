"""The weights of a package: one file or several shards, in full precision or in 8 bits."""
