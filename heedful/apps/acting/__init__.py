"""Small worlds that are drawn at random, and models of token sequences that act in them."""
