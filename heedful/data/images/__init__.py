"""Images with captions: batches of both, and of noisy images."""
