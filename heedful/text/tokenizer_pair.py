"""The tokenizers of a translator: one for both languages, or one for each."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, get_args

from heedful.config import TokenizerKind
from heedful.errors import ConfigError, ModelError
from heedful.text.pretokenization import is_of_word
from heedful.text.tokenizer import TextTokenizer, Tokenizer, damaged, read_text

if TYPE_CHECKING:  # imported on use: few models have protected spans or a list of words
    from heedful.text.chat_template import ChatTemplate
    from heedful.text.protected_spans import Protection, SpanKind
    from heedful.text.seen_words import SeenWords

T = TypeVar("T")

# A joint tokenizer has one file. Facts of later features are in separate files, so that directories
# without them are as older versions wrote them.
_FILE = "tokenizer.json"
_TARGET_FILE = "target_tokenizer.json"
PROTECTION_FILE = "protected_spans.json"
SOFT_TERMS_FILE = "soft_terms.json"
READING_FILE = "reading.json"
WRITING_FILE = "writing.json"
WORDS_FILE = "target_words.json"
CHAT_FILE = "chat_template.jinja"
"""Name of a chat template's file, as at Hugging Face."""

_FEWEST_TOKENS = 3
_RARE = re.compile(r"\b[A-Z]\w{2,}|\w*[^\W\x00-\x7f]\w*")
"""Words that a tokenizer may lack: with a capital, or with letters beyond ASCII."""

NumberForm = Literal["model", "keep", "localize"]
"""Form of the numbers in a translation: as the model writes them, as in the source, or with the
separators of the target language; the last two are corrected, too."""
Split = Literal["sentences", "lines", "none"]
ENGLISH = "en"


@dataclass(frozen=True)
class Reading:
    """The part of a text that a model reads at once, as it has learned it.

    Args:
        split: parts of a text that are read apart: `sentences`, or `lines` of any number of
            sentences; with `none` it is read as a whole, and its line breaks become spaces.
        language: code of the source language, by whose rules sentences are found.
        sentences: mean number of sentences of a line of the training corpus; None if unknown.
        letterless: share of its lines that have no letter, such as 8/13/99; 0 if unknown.
    """

    split: Split = "sentences"
    language: str = ENGLISH
    sentences: float | None = None
    letterless: float = 0.0


UNRECORDED = Reading()
"""The reading of a model that does not say: corpora of pairs hold sentences, and a model that saw
nothing else leaves out the second one."""


@dataclass(frozen=True)
class Writing:
    """Form of translations for which nobody asks another one, as a model states it.

    A measurement of the model leaves them as the model writes them.

    Args:
        numbers: form of numbers.
        languages: codes of source and target, by whose rules numbers and names are read.
        copy_unknown: true to copy words with unknown characters, and names that were lost.
    """

    numbers: NumberForm
    languages: tuple[str, str]
    copy_unknown: bool = False


@dataclass(frozen=True)
class TokenizerPair:
    """The tokenizers of source and target; the same object when joint.

    Args:
        source: tokenizer of the source.
        target: tokenizer of the target.
        protection: protected spans, which the model reads and writes as reserved tokens; None for
            a model without them.
        soft_terms: flag that the model was trained on inline translations of terms.
        reading: part of a text that the model reads at once; None if it is not recorded.
        writing: stated form of translations; None for a model that does not say.
        chat: template of the conversations that the model was trained on; None without any.
        words: words of the targets that the model was trained on; None if they are not recorded.
    """

    source: TextTokenizer
    target: TextTokenizer
    protection: Protection | None = None
    soft_terms: bool = False
    reading: Reading | None = None
    writing: Writing | None = None
    chat: str | None = None
    words: SeenWords | None = None

    @property
    def chat_template(self) -> ChatTemplate:
        """The template of conversations; the default one for a model without any."""
        from heedful.text.chat_template import ChatTemplate

        return ChatTemplate(self.chat, CHAT_FILE)

    @property
    def joint(self) -> bool:
        """True if both languages share one tokenizer."""
        return self.source is self.target

    @functools.cached_property
    def word_edges(self) -> tuple[list[bool], list[bool]]:
        """Masks over the target vocabulary: tokens that begin, and that end, with a word character.

        A word edge lies between two tokens unless both sides of it are word characters.
        """
        target = self.target
        # Computed once for the whole vocabulary: a search with required phrases needs it in every
        # step.
        special = {target.pad, target.bos, target.eos}
        begins, ends = [False] * target.size, [False] * target.size
        for id, piece in enumerate(target.pieces(range(target.size))):
            letters = piece.removeprefix("##")  # WordPiece's mark of a piece inside a word
            if letters and id not in special:
                begins[id], ends[id] = is_of_word(letters[0]), is_of_word(letters[-1])
        return begins, ends

    def loses_words(self, texts: Iterable[str]) -> bool:
        """Return True if any text has a word that the source spells out or has no token for."""
        source = self.source
        return any(
            source.unk in source.encode(word)
            or (word[0].isupper() and is_spelled_out(word, source.encode))
            for text in texts
            for word in _RARE.findall(text)
        )

    @property
    def fingerprint(self) -> str:
        """Text that identifies both tokenizers, the protected spans and `soft_terms`."""
        # Extensions are left out where unused, so that older fingerprints, and the folders of
        # encoded corpora that they name, stay valid.
        parts = [self.source.fingerprint, self.target.fingerprint]
        if self.protection is not None:
            parts.append(self._protection_json())
        return "-".join([*parts, *["soft terms"] * self.soft_terms])

    @functools.cached_property
    def reserved(self) -> dict[str, int]:
        """Target token of each reserved character; empty without protection."""
        if self.protection is None:
            return {}
        from heedful.text.protected_spans import RESERVED

        # After another character, since a tokenizer may put a space mark before a text.
        return {mark: self.target.encode(f"({mark}")[-1] for mark in RESERVED}

    @functools.cached_property
    def unwritten(self) -> tuple[int, ...]:
        """Target tokens that translations never have, or only for protected spans of the source."""
        marks: tuple[int, ...] = ()
        if self.soft_terms:
            from heedful.text.inline_terms import mark_ids

            marks = mark_ids(self.target)
        return (*self.reserved.values(), *marks)

    @property
    def reads(self) -> Reading:
        """The part of a text that the model reads at once, recorded or not."""
        return self.reading or UNRECORDED

    def splitting(self, split: Split | None) -> TokenizerPair:
        """Return this pair with another rule of splitting texts; itself if that is unset."""
        if split is None:
            return self
        return replace(self, reading=replace(self.reads, split=split))

    def protecting(self, kinds: Sequence[SpanKind]) -> TokenizerPair:
        """Return this pair with reserved tokens, for training a model with protected spans.

        Args:
            kinds: kinds of the protected spans.
        """
        from heedful.text.protected_spans import RESERVED, Protection

        source = self.source.extended(RESERVED)
        target = source if self.joint else self.target.extended(RESERVED)
        return replace(self, source=source, target=target, protection=Protection(tuple(kinds)))

    def with_soft_terms(self) -> TokenizerPair:
        """Return this pair with the marks of inline translations of terms.

        Raises:
            ConfigError: when source and target have different vocabularies, as an inline
                translation is encoded with the source's.
        """
        from heedful.text.inline_terms import END, SEPARATOR

        if not self.joint:
            raise ConfigError(
                "Soft terms need one vocabulary for source and target",
                where="tokenizer.joint",
                remedy="Set it to true (or begin with a model that has one), or leave soft_terms "
                "out",
            )
        tokenizer = self.source.extended((SEPARATOR, END))
        return replace(self, source=tokenizer, target=tokenizer, soft_terms=True)

    def having_seen(self, targets: Iterable[str]) -> TokenizerPair:
        """Return this pair with the words of training targets beside those that it has."""
        from heedful.text.seen_words import SeenWords

        words = SeenWords.of(targets)
        # A model that begins with another one has learned the words of both trainings.
        return replace(self, words=words if self.words is None else words | self.words)

    def _protection_json(self) -> str:
        assert self.protection is not None
        kinds = list(self.protection.kinds)
        return json.dumps({"schema_version": 1, "kinds": kinds}, sort_keys=True) + "\n"

    def files(self) -> dict[str, str]:
        """Return the names and contents of the pair's files in a model directory."""
        files = {_FILE: self.source.to_json()}
        if not self.joint:
            files[_TARGET_FILE] = self.target.to_json()
        if self.protection is not None:
            files[PROTECTION_FILE] = self._protection_json()
        if self.soft_terms:
            files[SOFT_TERMS_FILE] = json.dumps({"schema_version": 1}) + "\n"
        for name, facts in ((READING_FILE, self.reading), (WRITING_FILE, self.writing)):
            if facts is not None:
                content = {"schema_version": 1, **asdict(facts)}
                files[name] = json.dumps(content, sort_keys=True) + "\n"
        if self.chat is not None:
            files[CHAT_FILE] = self.chat
        if self.words is not None:
            files[WORDS_FILE] = json.dumps({"schema_version": 1, **self.words.plain()}) + "\n"
        return files

    def save(self, directory: Path) -> None:
        """Write `tokenizer.json`, and `target_tokenizer.json` when not joint, into a directory."""
        for name, content in self.files().items():
            (directory / name).write_text(content, encoding="utf-8")

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read what `save` wrote.

        Raises:
            ModelError: when a file is missing or damaged, with its path.
        """
        source = read_tokenizer(directory / _FILE)
        separate = directory / _TARGET_FILE
        target = read_tokenizer(separate) if separate.exists() else source
        protection = _read_beside(
            directory / PROTECTION_FILE,
            _protection,
            "This is no list of the parts of texts that this version of Heedful can protect",
        )
        soft_terms = _read_beside(
            directory / SOFT_TERMS_FILE,
            lambda content: True,
            "This does not say how the model has learned soft terms, or not to this version of "
            "Heedful",
        )
        reading = _read_beside(
            directory / READING_FILE,
            _reading,
            "This does not say what the model reads at once, or not to this version of Heedful",
        )
        writing = _read_beside(
            directory / WRITING_FILE,
            _writing,
            "This does not say how translations are written, or not to this version of Heedful",
        )
        words = _read_beside(
            directory / WORDS_FILE,
            _seen_words,
            "This is no list of the words that a model was trained on, or not to this version of "
            "Heedful",
        )
        chat = directory / CHAT_FILE
        template = read_text(chat) if chat.exists() else None
        soft = soft_terms is not None
        return cls(source, target, protection, soft, reading, writing, template, words)


def is_spelled_out(word: str, encode: Callable[[str], Sequence[int]]) -> bool:
    """Return True for a capitalised word of many tokens in any case: a name that is rarely known.

    "Heidelberg" has five tokens in either case, "The" has one, and "Translators" five where
    "translators" has three.

    Args:
        word: word that begins with a capital.
        encode: function that returns the tokens of a word.
    """
    return len(encode(word.casefold())) >= len(encode(word)) >= _FEWEST_TOKENS


def read_tokenizer(path: Path) -> TextTokenizer:
    """Read a tokenizer file, of a trained or of an imported tokenizer.

    Raises:
        ModelError: when the file is missing, damaged, of another project, or of a newer version.
    """
    text, where = read_text(path), str(path)
    kind = _kind(text)
    if kind == "imported":
        from heedful.text.imported_tokenizer import ImportedTokenizer

        return ImportedTokenizer.from_json(text, where=where)
    if kind == "fields":
        from heedful.text.field_tokenizer import FieldTokenizer

        return FieldTokenizer.from_json(text, where=where)
    # A file without a kind is no tokenizer of Heedful's; `Tokenizer` raises the error.
    if kind is None or kind in get_args(TokenizerKind):
        return Tokenizer.from_json(text, where=where)
    from heedful.registry import find

    try:
        registered: TextTokenizer = find("tokenizer", kind, get_args(TokenizerKind)).from_json(
            text, where=where
        )
    except ValueError as error:
        raise damaged(where, f"a field is missing or of the wrong type: {error}") from None
    return registered


def _protection(content: Any) -> Protection:
    from heedful.text.protected_spans import SPAN_KINDS, Protection

    kinds = tuple(content["kinds"])
    if not kinds or not set(kinds) <= set(SPAN_KINDS):
        raise ValueError(kinds)
    return Protection(kinds)


def _seen_words(content: Any) -> SeenWords:
    from heedful.text.seen_words import SeenWords

    return SeenWords.from_plain(content)


def _reading(content: Any) -> Reading:
    split, language, sentences = (content[name] for name in ("split", "language", "sentences"))
    letterless = content.get("letterless", 0.0)  # models before this version do not say
    sound = split in get_args(Split) and isinstance(language, str)
    if not sound or not isinstance(sentences, float | None) or not isinstance(letterless, float):
        raise ValueError(content)
    return Reading(split, language, sentences, letterless)


def _writing(content: Any) -> Writing:
    numbers, (source, target) = content["numbers"], content["languages"]
    copies = content.get("copy_unknown", False)  # models before this version do not say
    sound = isinstance(source, str) and isinstance(target, str) and isinstance(copies, bool)
    if numbers not in get_args(NumberForm) or not sound:
        raise ValueError(content)
    return Writing(numbers, (source, target), copies)


def _read_beside(path: Path, make: Callable[[Any], T], problem: str) -> T | None:
    """Read a JSON file beside the tokenizers.

    Args:
        path: path of the file.
        make: function of its content, which raises a ValueError, TypeError or KeyError if the
            content is not sound.
        problem: error message if the content is not sound.

    Returns:
        Result of the function; None if the file does not exist.

    Raises:
        ModelError: when the file is damaged or of a newer version.
    """
    if not path.exists():
        return None
    # A damaged file is refused: without it the model would get text that it was not trained on.
    try:
        content = json.loads(read_text(path))
        if content["schema_version"] == 1:
            return make(content)
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise ModelError(
        problem,
        where=str(path),
        remedy="Restore the file from where the model came from, or update Heedful",
    )


def _kind(text: str) -> str | None:
    """Return the kind that a tokenizer file names, if it names one."""
    try:
        content = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        return None
    kind = content.get("kind") if isinstance(content, dict) else None
    return kind if isinstance(kind, str) else None
