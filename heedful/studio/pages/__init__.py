"""The pages, a file each: what its script may ask, and how that is answered."""
