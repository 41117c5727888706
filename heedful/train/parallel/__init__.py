"""Training by several processes: their communication, shares of work, and placement of tensors."""
