"""Questions about a store: lists, filters, lineage, differences, locations."""
