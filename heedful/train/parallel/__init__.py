"""Training by several processes: who they are, what each does, and where a model's tensors lie."""
