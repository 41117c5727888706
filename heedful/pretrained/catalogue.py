"""The models at hand: their names, directories and cards; the directory that a name means.

A model at hand is a folder of this package: an ordinary model directory with a `card.toml`. Its
name stands for it wherever a model directory is asked for, as the name of a model of the hub does.
"""

from __future__ import annotations

import difflib
import re
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from heedful.config import Config, read_toml
from heedful.pretrained.hub import HubName, fetch, source_of

CARD_FILE = "card.toml"
FOLDER = Path(__file__).parent

_CODE = "[a-z]{2,3}(?:_[A-Za-z]{2,4})?"
LANGUAGE_PAIR = re.compile(f"({_CODE})-({_CODE})")
_PAIR_AT_END = re.compile(f"(?:.*[-_.])?({_CODE})-({_CODE})")

Words = Annotated[str, Field(min_length=1)]


class MeasuredQuality(Config):
    """A measured quality of a model."""

    metric: Words
    data: Words = Field(description="what it was measured on, never trained on")
    value: float
    interval: tuple[float, float] | None = Field(None, description="95 %, by bootstrap")
    note: str = ""


class ExampleText(Config):
    """A text with which a page or a guide can begin."""

    text: Words
    about: str = Field("", description="why it is worth a look")


class Card(Config):
    """Facts about a model at hand, as `card.toml` says them."""

    title: Words
    summary: Words = Field(description="a line")
    task: Literal["translation", "causal_lm", "masked_lm", "images"]
    languages: tuple[Words, ...] = ()
    data: Words
    licence: Words
    attribution: Words
    command: Words = Field(description="the command that makes it again")
    machine: Words
    date: Words
    minutes: float = Field(ge=0, description="of training")
    scores: tuple[MeasuredQuality, ...]
    limits: tuple[Words, ...] = Field(description="what it cannot do")
    examples: tuple[ExampleText, ...] = ()
    sentences: tuple[Words, ...] = Field((), description="held out, to measure heads on")


@dataclass(frozen=True)
class ModelAtHand:
    """A model that comes with the package.

    Args:
        name: that stands for it in commands.
        path: of its directory.
    """

    name: str
    path: Path

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(file.stat().st_size for file in self.path.iterdir())

    def card(self) -> Card:
        """Read its card.

        Raises:
            ConfigError: when the card is damaged.
        """
        file = self.path / CARD_FILE
        return Card.parse(read_toml(file), where=str(file))


class NameTaken(UserWarning):
    """A directory has the name of a model at hand, and is used in its place."""


def models_at_hand() -> dict[str, ModelAtHand]:
    """Return the models at hand by name, in the order of the alphabet."""
    cards = sorted(FOLDER.glob(f"*/{CARD_FILE}"))
    return {card.parent.name: ModelAtHand(card.parent.name, card.parent) for card in cards}


def directory_of(word: Path) -> Path:
    """Return the directory that a word means: itself, a model at hand, or a model of the hub.

    What is on the disk comes first. If it hides a model at hand, a warning says so. A model of the
    hub is fetched.

    Args:
        word: a path, the name of a model at hand, or a name of the hub: `OWNER/NAME@REVISION`.

    Returns:
        The directory; the word itself if it can only be a path, which may not exist.

    Raises:
        UserError: and its kinds, as `heedful.pretrained.hub.fetch`.
    """
    is_at_hand = len(word.parts) == 1 and (FOLDER / word / CARD_FILE).is_file()
    if not word.exists():
        if is_at_hand:
            return FOLDER / word
        name = HubName.parse(word)
        return word if name is None else fetch(name, _path_remedy(word))
    if not is_at_hand:
        return word
    warnings.warn(
        f"Using the directory {word}, not the model at hand of this name; for that one, call the "
        "command from another directory",
        NameTaken,
        stacklevel=1,  # one place for all callers, so that a command says it once
    )
    return word


def name_of(directory: Path) -> str:
    """Return the name of a model: of its repository if it is of the hub, else of its folder."""
    return source_of(directory).get("repository", directory.resolve().name).rpartition("/")[2]


def languages_of(directory: Path) -> tuple[str, str] | None:
    """Return the languages of a translator: those its name ends in, or those of its card.

    Args:
        directory: of the model.

    Returns:
        Codes of source and target; None if neither says them.
    """
    pair = _PAIR_AT_END.fullmatch(name_of(directory))
    if pair is None and (directory / CARD_FILE).is_file():
        codes = ModelAtHand(directory.name, directory).card().languages
        pair = LANGUAGE_PAIR.fullmatch("-".join(codes))
    return None if pair is None else (pair[1], pair[2])


def _path_remedy(word: Path) -> str:
    """Return the advice to those who meant a directory here, or a model at hand."""
    with suppress(OSError):
        near = [each.name for each in word.parent.iterdir() if each.is_dir()]
        if close := difflib.get_close_matches(word.name, near, n=1):
            return f"Check the path (there is {word.parent / close[0]})"
    known = models_at_hand()
    if close := difflib.get_close_matches(str(word), known, n=1):
        return f"Check the name (did you mean the model at hand {close[0]}?)"
    return f"Check the path, or take a model at hand ({', '.join(known) or 'none yet'})"


def pinned(word: str) -> str:
    """Return a word for a model; that of a model of the hub with its commit of today.

    Args:
        word: as for `directory_of`.

    Returns:
        `OWNER/NAME@COMMIT`, which means the same model for ever; the word itself for others.

    Raises:
        UserError: and its kinds, as `directory_of`.
    """
    source = source_of(directory_of(Path(word)))
    return f"{source['repository']}@{source['commit']}" if source else word
