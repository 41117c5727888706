"""The studio: web pages that show the inner working of Transformers on local models."""
