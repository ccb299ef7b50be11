"""`standfast diff`: of files, of runs and checkpoints, of trees of blocks."""
