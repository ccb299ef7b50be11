"""Bytes and disks: how tensors become a file that is durable, and come back verified."""
