"""`standfast log`: lineage, the history of one run, and why checkpoints were kept."""
