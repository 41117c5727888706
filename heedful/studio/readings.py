"""Texts of a person as a model reads them; the last ones are kept for the next question."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from heedful.config import Config
from heedful.errors import DataError, ModelError

if TYPE_CHECKING:
    from heedful.inspect.reading import Reading
    from heedful.inspect.subject import Subject
    from heedful.studio.workspace import Workspace

LONGEST = 4000
"""Characters that are looked at while somebody waits."""
MOST_TOKENS = 512
"""Tokens on one side of a picture."""
CONTINUED = 32
"""Tokens that a language model goes on for."""
_KEPT = 16

Second = Literal["", "none", "typed", "own"]


class TextRequest(Config):
    """A text for a model, and what goes with it: a translation, continuation or second text."""

    model: str
    text: str
    second: str = ""
    given: Second = Field(
        "", description="whether the second is left out, typed or the model's own; empty: as usual"
    )


class Recent:
    """The last readings, so that another layer of a translation needs no new search."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, Reading] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Reading]) -> Reading:
        """What is kept under a key, or is made and kept now."""
        with self._lock:
            found = self._kept.get(key)
        if found is None:
            found = make()
        with self._lock:
            self._kept[key] = found
            self._kept.move_to_end(key)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return found


def subject_of(name: str, workspace: Workspace) -> Subject:
    """The model of texts of a name.

    Raises:
        UserError: when there is none of this name.
        ModelError: when it reads no text.
    """
    from heedful.inspect.subject import Subject

    loaded = workspace.place(name).load()
    if loaded.tokenizers is None:
        raise ModelError(
            f"This model takes no text; its kind is {loaded.model.spec.kind!r}",
            where=name,
            remedy="Choose a translator, a language model or a text encoder",
        )
    return Subject(loaded.model, loaded.tokenizers)


def read_text(asked: TextRequest, workspace: Workspace) -> tuple[Subject, Reading]:
    """A model, and the text as it reads it.

    Raises:
        UserError: when there is no such model, or the text is none, too long, or lacks its second.
    """
    for name, text in (("text", asked.text), ("second", asked.second)):
        check_length(text, LONGEST, where=name)
    subject = subject_of(asked.model, workspace)
    version = workspace.place(asked.model).load().version
    key = (asked.model, asked.text, asked.second, asked.given, version)
    reading = workspace.recent.get(key, lambda: _read(subject, asked))
    if reading.length > MOST_TOKENS:
        raise DataError(
            f"{reading.length:,} tokens are more than the {MOST_TOKENS} that are drawn",
            where="text",
            remedy="Shorten it; `heedful inspect MODEL TEXT -o FILE` writes those of longer texts",
        )
    return subject, reading


def check_length(text: str, longest: int, *, where: str) -> None:
    """Refuse what nobody would wait for.

    Raises:
        DataError: when the text is longer.
    """
    if len(text) > longest:
        raise DataError(
            f"The text has {len(text):,} characters; here at most {longest:,} are looked at",
            where=where,
            remedy="Shorten it",
        )


def _read(subject: Subject, asked: TextRequest) -> Reading:
    from heedful.decode.settings import SearchSettings
    from heedful.inspect.reading import read
    from heedful.models.translator import Translator

    translates = isinstance(subject.model, Translator)
    given = asked.given or ("own" if translates else "none")
    if given == "typed":
        if not asked.second.strip():
            raise DataError("There is nothing typed yet to go with the text", where="second")
        return read(subject, asked.text, asked.second)
    if translates:
        if given == "none":
            raise DataError(
                "A translator's decoder reads a translation",
                where="given",
                remedy="Type one, or let the model write it",
            )
        return read(subject, asked.text)
    if given == "none":
        return read(subject, asked.text)
    if subject.model.spec.kind == "encoder":
        raise DataError(
            "This model writes no text", where="given", remedy="Type a second one, or none"
        )
    search = SearchSettings(beam=1, max_length=CONTINUED)
    return read(subject, asked.text, search=search)
