"""Quality of outputs: corpus metrics, accuracy, perplexity, and tests between two systems."""
