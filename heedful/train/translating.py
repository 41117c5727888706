"""The real decoder, as validation uses it: the same that `heedful translate` runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heedful.decode.pipeline import TranslationPipeline
from heedful.decode.settings import SearchSettings

if TYPE_CHECKING:
    from heedful.device import Precision
    from heedful.events import Events
    from heedful.models.translator import Translator
    from heedful.text.pair import TokenizerPair
    from heedful.train.settings import ValidationSettings
    from heedful.train.validation import Translate


def translator_function(
    tokenizers: TokenizerPair, settings: ValidationSettings, precision: Precision, events: Events
) -> Translate:
    """A function that translates sentences with the model it is given.

    Args:
        tokenizers: of the model.
        settings: beam and length penalty.
        precision: of the forward passes.
        events: told how far it is.
    """
    search = SearchSettings(beam=settings.beam, length_penalty=settings.length_penalty)

    def translate(model: Translator, sources: list[str]) -> list[str]:
        pipeline = TranslationPipeline(model, tokenizers, precision=precision)

        def told(done: int, total: int) -> None:
            events.progress(done, total, "translating")

        return [str(text) for text in pipeline.translate(sources, settings=search, progress=told)]

    return translate
