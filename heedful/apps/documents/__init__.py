"""Translation of documents in place: only text changes, and markup and layout stay as they are."""
