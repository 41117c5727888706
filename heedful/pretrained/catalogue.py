"""Models that come with the package, called models at hand, and the resolution of model names.

A model at hand is a folder of this package: an ordinary model directory with a `card.toml`. Its
name is accepted wherever a model directory is, and so is the name of a model of the hub.
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
from heedful.errors import UserError
from heedful.pretrained.hub import HubName, fetch, source_of

CARD_FILE = "card.toml"
FOLDER = Path(__file__).parent

# A language code, perhaps with a region or script: en, pt_BR, zh_Hant.
_CODE = "[a-z]{2,3}(?:_[A-Za-z]{2,4})?"
LANGUAGE_PAIR = re.compile(f"({_CODE})-({_CODE})")
_PAIR_AT_END = re.compile(f"(?:.*[-_.])?({_CODE})-({_CODE})")

Words = Annotated[str, Field(min_length=1)]


class MeasuredQuality(Config):
    """A measured quality of a model."""

    metric: Words
    data: Words = Field(description="test data, never trained on")
    value: float
    against: str = Field("", description="references, where one metric has several kinds")
    interval: tuple[float, float] | None = Field(None, description="95 % bootstrap interval")
    note: str = ""


class ExampleText(Config):
    """An example text for a page or a guide."""

    text: Words = Field(description="text, or a record as a line of JSON")
    about: str = Field("", description="remark on the example")


class NotedHead(Config):
    """A head in which something can be seen, on which pages of attention open."""

    part: Literal["encoder", "decoder", "cross"]
    layer: int = Field(ge=1, description="number of the layer, from 1")
    head: int = Field(ge=1, description="number of the head, from 1")
    word: Words = Field(description="word of the first example, or of its translation, with a line")
    about: Words = Field(description="evidence, as measured")


class RelationHead(Config):
    """The head that best finds the second word of a relation from the first, as measured on trees.

    Head and offset are the best of all on some documents, and measured on others.
    """

    relation: Words = Field(description="such as subject → verb, the word that looks first")
    part: Literal["encoder", "decoder"]
    layer: int = Field(ge=1, description="number of the layer, from 1")
    head: int = Field(ge=1, description="number of the head, from 1")
    share: float = Field(ge=0, le=1, description="share of right words")
    offset: int = Field(description="words from the first to the one that is always guessed")
    offset_share: float = Field(ge=0, le=1, description="share of right words of the offset")
    gain: tuple[float, float] = Field(
        description="95 % bootstrap interval of the difference of both shares"
    )
    count: int = Field(ge=1, description="number of pairs of words")


class Card(Config):
    """Facts about a model at hand, the content of `card.toml`."""

    title: Words
    summary: Words = Field(description="summary in one line")
    task: Literal["translation", "causal_lm", "masked_lm", "images", "sounds", "tokens"]
    languages: tuple[Words, ...] = ()
    data: Words
    licence: Words
    attribution: Words
    command: Words = Field(description="command that trains the model")
    machine: Words
    date: Words
    minutes: float = Field(ge=0, description="training time in minutes")
    scores: tuple[MeasuredQuality, ...]
    limits: tuple[Words, ...] = Field(description="known limits of the model")
    examples: tuple[ExampleText, ...] = ()
    noted_head: NotedHead | None = None
    example_heads: tuple[NotedHead, ...] = Field(
        (), description="heads of other parts in which the first example shows something"
    )
    noted_heads: tuple[RelationHead, ...] = Field((), description="the best head of each relation")
    sentences: tuple[Words, ...] = Field((), description="held-out sentences for measures of heads")


@dataclass(frozen=True)
class ModelAtHand:
    """A model that comes with the package.

    Args:
        name: name of the model in commands.
        path: path of its directory.
    """

    name: str
    path: Path

    @property
    def size(self) -> int:
        """Size of all its files in bytes."""
        return sum(file.stat().st_size for file in self.path.iterdir())

    def card(self) -> Card:
        """Read the card of the model.

        Raises:
            ConfigError: when the card is damaged.
        """
        file = self.path / CARD_FILE
        return Card.parse(read_toml(file), where=str(file))


class NameTaken(UserWarning):
    """A directory with the name of a model at hand, which is used instead of the model."""


def models_at_hand() -> dict[str, ModelAtHand]:
    """Return the models at hand by name, sorted alphabetically."""
    # A folder is a model if it has a card: the package's own files lie beside these folders.
    cards = sorted(FOLDER.glob(f"*/{CARD_FILE}"))
    return {card.parent.name: ModelAtHand(card.parent.name, card.parent) for card in cards}


def directory_of(word: Path) -> Path:
    """Resolve a path, the name of a model at hand, or the name of a model of the hub.

    An existing path comes first, with a warning if it hides a model at hand. A model of the hub is
    fetched.

    Args:
        word: path, name of a model at hand, or name of the hub, `OWNER/NAME@REVISION`.

    Returns:
        The directory; the word itself if it can only be a path, which need not exist.

    Raises:
        UserError: as `heedful.pretrained.hub.fetch`.
    """
    # A single part only: a path with folders never means a model at hand.
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
        stacklevel=1,  # warnings are shown once a place; this is the same for all callers
    )
    return word


def refuse_shared(word: Path, what: str, remedy: str) -> None:
    """Refuse to write a file into a directory that is not the user's own.

    Args:
        word: path or name of a model.
        what: kind of file, such as "a shortlist", for the message.
        remedy: remedy of the error.

    Raises:
        UserError: for a model of the package or of the hub's cache.
    """
    directory = directory_of(word)
    if directory.parent == FOLDER or source_of(directory):
        place = "the package" if directory.parent == FOLDER else "the hub's cache"
        raise UserError(f"{what} cannot be written into {place}", where=str(word), remedy=remedy)


def name_of(directory: Path) -> str:
    """Return the name of a model: that of its repository on the hub, or that of its folder."""
    return source_of(directory).get("repository", directory.resolve().name).rpartition("/")[2]


def languages_of(directory: Path) -> tuple[str, str] | None:
    """Return the languages of a translator, from the end of its name or from its card.

    Args:
        directory: directory of the model.

    Returns:
        Codes of source and target; None if they are unknown.
    """
    # The name first, as a fetched model has no card.
    pair = _PAIR_AT_END.fullmatch(name_of(directory))
    if pair is None and (directory / CARD_FILE).is_file():
        codes = ModelAtHand(directory.name, directory).card().languages
        pair = LANGUAGE_PAIR.fullmatch("-".join(codes))
    return None if pair is None else (pair[1], pair[2])


def _path_remedy(word: Path) -> str:
    """Return a remedy for a mistyped directory or model at hand."""
    with suppress(OSError):  # the parent may not exist either
        near = [each.name for each in word.parent.iterdir() if each.is_dir()]
        if close := difflib.get_close_matches(word.name, near, n=1):
            return f"Check the path (there is {word.parent / close[0]})"
    known = models_at_hand()
    if close := difflib.get_close_matches(str(word), known, n=1):
        return f"Check the name (did you mean the model at hand {close[0]}?)"
    return f"Check the path, or take a model at hand ({', '.join(known) or 'none yet'})"


def pinned(word: str) -> str:
    """Return a name of a model with its present commit if it is a model of the hub.

    Args:
        word: path or name, as for `directory_of`.

    Returns:
        `OWNER/NAME@COMMIT`, which never changes its meaning; the word itself for other models.

    Raises:
        UserError: as `directory_of`.
    """
    source = source_of(directory_of(Path(word)))
    return f"{source['repository']}@{source['commit']}" if source else word
