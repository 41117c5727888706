"""Learning from preferences between answers and from their rewards."""
