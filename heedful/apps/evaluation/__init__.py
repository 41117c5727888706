"""Evaluation beyond one score of a corpus: by length, over seeds, and likelihood of texts."""
