"""How much text models can read and generate."""

from __future__ import annotations

from collections.abc import Sequence

from heedful.decode.settings import SearchSettings
from heedful.errors import ConfigError, DataError
from heedful.models.spec import TranslatorSpec


def table_length(specs: Sequence[TranslatorSpec]) -> int | None:
    """Positions that all models have embeddings for; None when positions never end."""
    lengths = [spec.embedding.positions.max_length for spec in specs]
    return min((length for length in lengths if length is not None), default=None)


def longest_output(specs: Sequence[TranslatorSpec], settings: SearchSettings) -> int | None:
    """The most tokens that models can generate; None when positions never end.

    Raises:
        ConfigError: when more is asked for.
    """
    table = table_length(specs)
    if table is None:
        return None
    longest = table - 1  # the beginning-of-sequence token takes a position
    for name, asked in (
        ("max_length", settings.max_length),
        ("min_length", settings.min_length),
    ):
        if asked is not None and asked > longest:
            raise ConfigError(
                f"The model has learned {table} positions and can generate {longest} tokens",
                where=f"{name} = {asked}",
                remedy="Ask for less",
            )
    return longest


def check_fits(
    specs: Sequence[TranslatorSpec], ids: Sequence[int], where: str, frame: int = 1
) -> None:
    """Refuse a text that models with learned positions cannot read whole.

    Args:
        specs: of the models.
        ids: of the text, without special tokens.
        where: what to call it.
        frame: special tokens that stand around it.

    Raises:
        DataError: naming the text.
    """
    table = table_length(specs)
    if table is not None and len(ids) + frame > table:
        raise DataError(
            f"{len(ids)} tokens are more than the {table - frame} the model can read",
            where=where,
            remedy="Give shorter pieces of the text",
        )
