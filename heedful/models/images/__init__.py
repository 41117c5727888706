"""Models of images, made of the same blocks as those of texts."""
