"""How good an output is: corpus metrics, accuracy, perplexity, and tests between two systems."""
