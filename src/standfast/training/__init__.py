"""Training: checkpoints that hold nothing up, and runs that go on where they stopped."""
