"""Text to ids and back. Nothing is imported here, so that the spec loads quickly."""
