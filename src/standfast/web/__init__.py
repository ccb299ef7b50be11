"""The dashboard: pages and a JSON API over one store; docs/dashboard.md and docs/api.md tell of it.

It shows what the command line prints, and has no logic of its own.
"""
