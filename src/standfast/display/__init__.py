"""How results are shown: rows, plain text and JSON, for the command line and the dashboard."""
