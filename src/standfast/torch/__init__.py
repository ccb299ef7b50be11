"""torch: its tensors, devices, modules, optimizers, random states and data loader."""
