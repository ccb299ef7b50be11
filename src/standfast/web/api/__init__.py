"""The JSON API of the dashboard; docs/api.md describes it."""
