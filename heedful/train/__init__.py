"""Training. Nothing is imported here: the settings load quickly."""
