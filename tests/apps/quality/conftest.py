"""The translator at hand."""

from __future__ import annotations

import pytest

import heedful
from heedful.pipelines.translation import TranslationPipeline
from heedful.pretrained.catalogue import models_at_hand


@pytest.fixture(scope="session")
def translator() -> TranslationPipeline:
    """Translates everyday sentences from English to German, as the model writes them."""
    path = models_at_hand()["en-de"].path
    return heedful.load(path, device="cpu", numbers="model", copy_unknown=False)
