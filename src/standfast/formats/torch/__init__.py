"""torch's `.pt`, `.pth` and `.ckpt`, read and written without torch and without pickle."""
