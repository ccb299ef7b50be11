"""The proof that a program resumes exactly: `standfast prove`, or `prove` in Python."""

from standfast.training.proof.proof import prove

__all__ = ["prove"]
