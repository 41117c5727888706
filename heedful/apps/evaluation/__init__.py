"""Further evaluations: intervals over draws and seeds, scores by length, likelihoods of texts."""
