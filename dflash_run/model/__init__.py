"""The drafter: its shape, anchors, attention mask, layers, losses and files."""
