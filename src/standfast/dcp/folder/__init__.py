"""Folders that torch.distributed.checkpoint wrote, read without torch.distributed."""
