"""CamemBERT (Martin 2020): RoBERTa in French, under its own names of classes."""

from __future__ import annotations

from heedful.interop.architectures.encoders.roberta import roberta_names

ARCHITECTURE = roberta_names("camembert", "Camembert").architecture()
