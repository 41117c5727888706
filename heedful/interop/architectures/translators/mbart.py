"""mBART (Liu 2020; 50 languages: Tang 2020): BART with norms before the sub-layers."""

from __future__ import annotations

from heedful.interop.architectures.translators.bart import bart_architecture

ARCHITECTURE = bart_architecture("mbart", "MBart", pre_norm=True)
