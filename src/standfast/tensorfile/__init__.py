"""What users do with one file, a verb a module."""
