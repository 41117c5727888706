"""Raw text or images in, results out. Nothing is imported here: each pipeline loads by itself."""
