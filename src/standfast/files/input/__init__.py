"""Files open for reading: local, in memory, fetched by range, cached or streamed."""
