"""The studio: web pages that show what Transformers do, on models that are at hand."""
