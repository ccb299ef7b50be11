"""`standfast show`: a file, a checkpoint, a package, a tree of blocks."""
