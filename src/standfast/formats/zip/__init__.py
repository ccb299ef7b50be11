"""Zip archives as torch and NumPy write them, read strictly."""
