"""The mirror of a run: every checkpoint is uploaded, and a lost run is recovered from it."""
