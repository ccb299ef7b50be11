"""Files that layout V3 of weightslab has and Standfast keeps up to date."""
