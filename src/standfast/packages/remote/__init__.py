"""Packages at a URL: reading, uploading, and paths that may be local or remote."""
