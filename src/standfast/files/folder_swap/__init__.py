"""A folder of files replaced by another in one atomic step."""
