"""Training on many devices, on paper: memory, communication, time and money of each layout."""
