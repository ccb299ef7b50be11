"""A store in an object store: S3, and what else speaks its language."""
