"""Saving in the background: staging, the helper process and the protocol between them."""
