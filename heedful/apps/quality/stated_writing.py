"""Translators that write as their models state, where nobody asks for something else."""

from __future__ import annotations

import warnings
from typing import Any

from heedful.apps.quality.consistency import ConsistentTranslation
from heedful.apps.quality.number_words import knows_number_words
from heedful.apps.quality.reports import Languages
from heedful.errors import TorchMissing
from heedful.pipelines.translation import TranslationPipeline


class NumbersLeft(UserWarning):
    """A model states a form of numbers that needs a package which is not installed."""


def as_stated(
    pipeline: TranslationPipeline,
    *,
    numbers: str | None = None,
    languages: Languages = (None, None),
    copy_unknown: bool | None = None,
    capitals: bool = False,
) -> TranslationPipeline:
    """Return a translator with options of consistency, and as its model states without them.

    Args:
        pipeline: pipeline of the translator.
        numbers: form of numbers, `model` as the model writes them; what the model states if unset.
        languages: codes of source and target; those that the model states if unknown.
        copy_unknown: see `ConsistentTranslation`; what the model states if unset.
        capitals: see `ConsistentTranslation`.

    Returns:
        A `ConsistentTranslation`; the pipeline itself if there is nothing to keep consistent.

    Raises:
        ConfigError: when numbers are to be localized and a language is unknown.
        TorchMissing: when words are to be copied by a pipeline that cannot force words.
    """
    stated = pipeline.tokenizers.writing
    if stated is not None and languages == (None, None):
        languages = stated.languages
    if copy_unknown and not pipeline.forces_words:
        raise TorchMissing("A translation with forced words")
    if copy_unknown is None:
        copy_unknown = stated is not None and stated.copy_unknown
    if numbers is None and stated is not None and stated.numbers != "model":
        numbers = stated.numbers
        # Whoever asks for a form gets it or an error; here nobody has asked.
        if not knows_number_words():
            warnings.warn(
                "Numbers are left as the model writes them; pip install 'heedful[check]' lets "
                "Heedful correct them",
                NumbersLeft,
                stacklevel=2,
            )
            numbers = None
    form: Any = None if numbers == "model" else numbers
    if form is None and not (capitals or copy_unknown):
        return pipeline
    return ConsistentTranslation(
        pipeline, capitals=capitals, copy_unknown=copy_unknown, numbers=form, languages=languages
    )
