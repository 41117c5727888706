"""Further evaluations: scores by source length, intervals over seeds, and likelihoods of texts."""
