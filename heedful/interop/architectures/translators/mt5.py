"""mT5 (Xue 2021): T5 1.1 in 101 languages, without the factor before the output projection."""

from __future__ import annotations

from heedful.interop.architectures.translators.t5 import t5_architecture

ARCHITECTURE = t5_architecture(
    "mt5", "gated-gelu", False, "MT5ForConditionalGeneration", "MT5Model"
)
