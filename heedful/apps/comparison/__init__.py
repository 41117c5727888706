"""Several configurations trained on the same data with the same budget, and compared."""
