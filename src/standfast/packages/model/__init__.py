"""The model itself: its configuration, its tensors and the GPT they are loaded into."""
