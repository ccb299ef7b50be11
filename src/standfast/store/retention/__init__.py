"""What is kept and what is deleted: verdicts, deletion, the trash, space."""
