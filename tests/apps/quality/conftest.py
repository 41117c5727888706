"""The translator at hand."""

from __future__ import annotations

import pytest

import heedful
from heedful.pipelines.translation import TranslationPipeline
from heedful.pretrained.catalogue import models_at_hand


@pytest.fixture(scope="session")
def translator() -> TranslationPipeline:
    """Translates everyday sentences from English to German, with numbers as it writes them."""
    return heedful.load(models_at_hand()["en-de"].path, device="cpu", numbers="model")
