"""Models of sounds."""
