"""Where a store keeps its objects: the interface, a local folder, memory."""
