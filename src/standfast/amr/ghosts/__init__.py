"""Ghost layers: the sites and links around a block, taken from its neighbours."""
