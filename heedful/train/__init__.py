"""What is done with a model over time. Nothing is imported here: the settings load quickly."""
