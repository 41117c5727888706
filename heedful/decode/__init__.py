"""Search and scoring. Nothing is imported here, so that the settings load without torch."""
