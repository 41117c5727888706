"""Networks built of blocks. Nothing is imported here, so that the specs load without torch."""
