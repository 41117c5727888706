"""Encoders of images and of texts with vectors in one space."""
