"""The models at hand: their names, directories and cards.

A model at hand is a folder of this package: an ordinary model directory with a `card.toml`. Its
name stands for it wherever a model directory is asked for.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from heedful.config import Config, read_toml

CARD_FILE = "card.toml"
FOLDER = Path(__file__).parent

Words = Annotated[str, Field(min_length=1)]


class Score(Config):
    """A measured quality of a model."""

    metric: Words
    data: Words = Field(description="what it was measured on, never trained on")
    value: float
    interval: tuple[float, float] | None = Field(None, description="95 %, by bootstrap")
    note: str = ""


class Example(Config):
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
    scores: tuple[Score, ...]
    limits: tuple[Words, ...] = Field(description="what it cannot do")
    examples: tuple[Example, ...] = ()
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
    """Return the directory that a word means: itself, or a model at hand of this name.

    What is on the disk comes first. If it hides a model at hand, a warning says so.

    Args:
        word: a path, or the name of a model at hand.
    """
    if len(word.parts) != 1 or not (FOLDER / word / CARD_FILE).is_file():
        return word
    if not word.exists():
        return FOLDER / word
    warnings.warn(
        f"Using the directory {word}, not the model at hand of this name; for that one, call the "
        "command from another directory",
        NameTaken,
        stacklevel=1,  # one place for all callers, so that a command says it once
    )
    return word
