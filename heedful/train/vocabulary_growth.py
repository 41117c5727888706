"""The tokenizers of a model that training starts from, with the tokens that the settings add."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from heedful.durable import open_regular
from heedful.errors import ConfigError, DataError
from heedful.models.new_tokens import new_tokens
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.text.tokenizer_spec import can_be_added
from heedful.train.warm_start import initial_text_model

if TYPE_CHECKING:
    from heedful.events import Events
    from heedful.train.run_settings import RunSettings


def initial_tokenizers(settings: RunSettings, events: Events) -> TokenizerPair | None:
    """The tokenizers of the initial model, with the tokens that the settings add.

    Args:
        settings: of the run.
        events: told how many tokens are new.

    Returns:
        None where training starts from a new model.

    Raises:
        ModelError: when the initial model is missing or damaged.
        ConfigError: when a setting contradicts it, or needs one.
    """
    if settings.init is None:
        _refuse_without_model(settings)
        return None
    _, before = initial_text_model(settings)
    tokens = _extension(settings)
    if not tokens:
        return before
    source = before.source.extended(tokens)
    target = source if before.joint else before.target.extended(tokens)
    now = TokenizerPair(source, target)
    sides = 1 if before.joint else 2
    # A joint vocabulary is counted on both sides.
    added = sum(len(new.pieces) for new in new_tokens(before, now).values()) * sides // 2
    known = sides * len(tokens) - added
    events.note(
        f"{added:,} tokens are added to the vocabulary"
        + (f"; {known:,} are pieces of it already" if known else "")
    )
    return now


def extends_vocabulary(settings: RunSettings) -> bool:
    """True if the tokenizer of the initial model gets more tokens."""
    return bool(settings.tokenizer.extend) or settings.tokenizer.extend_file is not None


def _extension(settings: RunSettings) -> list[str]:
    """The tokens to add, each once."""
    spec = settings.tokenizer
    tokens = list(spec.extend)
    if spec.extend_file is not None:
        file = Path(spec.extend_file)
        try:
            with open_regular(file) as stream:
                lines = stream.read().decode("utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"The tokens cannot be read: {error}",
                where=str(file),
                remedy="Give a file of text in UTF-8, a token a line",
            ) from None
        tokens += [line for line in lines if line]
        for number, line in enumerate(lines, start=1):
            if line and not can_be_added(line):
                raise DataError(
                    "White space begins or ends the token",
                    where=f"{file}:{number}",
                    remedy="Take it away",
                )
    return list(dict.fromkeys(tokens))


def _refuse_without_model(settings: RunSettings) -> None:
    for name, is_set in (
        ("lora.rank", settings.lora.rank > 0),
        ("tokenizer.extend", bool(settings.tokenizer.extend)),
        ("tokenizer.extend_file", settings.tokenizer.extend_file is not None),
    ):
        if is_set:
            raise ConfigError(
                f"{name} needs a model to begin with", where=name, remedy="Name it with --init"
            )
