"""Training of models. This file imports nothing, so that the settings load quickly."""
