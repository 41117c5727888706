"""Search over token sequences. Nothing is imported here: the settings load without torch."""
