"""Pre-tokenization: words, marked spaces, and bytes as characters.

Pieces of `bpe`, `unigram` and `characters` tokenizers hold the mark U+2581 for a space. A U+2581 in
the text itself becomes a space in turn, so that nothing is lost. Byte-level pieces keep the space.
A line is prefixed with one space, so that its first word has the same pieces as inside a line;
decoding removes that space again.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from tokenizers import Regex, pre_tokenizers

from heedful.config import TextNormalization

if TYPE_CHECKING:
    from heedful.text.normalization import TextNormalizer

Words = Literal["whitespace", "punctuation"]

MARK = "\u2581"
LETTER = re.compile(r"[^\W\d_]")
"""A letter of any script."""

_TRADE = str.maketrans({" ": MARK, MARK: " "})


class Marking:
    """The conversion of a line to marked text and back, for a kind of tokenizer.

    Args:
        kind: kind of the tokenizer, as in `TokenizerSpec`.
        lowercase: folding of case, which `unmark` cannot undo.
        normalization: rule of the text's spelling, which `unmark` cannot undo either.

    Attributes:
        in_bytes: True for pieces of bytes, in which a space stays a space.
        space: character that stands for a space.
        prefix: characters before every line.
    """

    def __init__(
        self, kind: str, lowercase: bool, normalization: TextNormalization = "none"
    ) -> None:
        self.in_bytes = kind == "byte-bpe"
        self._lowercase = lowercase
        self._normalization = normalization
        self.space = " " if self.in_bytes else MARK
        self.prefix = "" if kind == "characters" else self.space

    def mark(self, text: str) -> str:
        """Convert a line to marked text; an empty line stays empty."""
        text = self._normalized(text)
        if not text:
            return ""
        if self._lowercase:
            text = text.lower()
        return self.prefix + (text if self.in_bytes else text.translate(_TRADE))

    def within(self, text: str) -> str:
        """Convert a text inside a line, without the prefix."""
        return self.mark(text).removeprefix(self.prefix)

    def mark_around(self, text: str, name: str) -> list[str]:
        """Convert the parts of a text between gaps, which are written as `name`.

        A piece includes the space before it, so a gap hides that space, too; a character does not.
        """
        # The full stop stands for the gap, and is cut off again together with the prefix.
        texts = self._normalized(text).split(name)
        parts = [self.mark("." + part)[len(self.prefix) + 1 :] for part in texts]
        parts[0] = self.prefix + parts[0] if parts[0] else ""
        if self.prefix:
            parts[:-1] = [part.removesuffix(self.space) for part in parts[:-1]]
        return parts

    def origin(self, text: str) -> list[tuple[int, int]]:
        """Return the characters of the text from which each character of `mark(text)` comes.

        Returns:
            Index of the first character and of the one after the last; 0 and 0 for the prefix.
        """
        letters = self._normalized(text)
        if not letters:
            return []
        if letters == text:
            origin = [(i, i + 1) for i in range(len(text))]
        else:
            origin = self._normalizer.origin(text)
        # Lower case of one letter may be two characters.
        lengths = [len(letter.lower()) if self._lowercase else 1 for letter in letters]
        spans = zip(origin, lengths, strict=True)
        repeated = [span for span, length in spans for _ in range(length)]
        return [(0, 0)] * len(self.prefix) + repeated

    def _normalized(self, text: str) -> str:
        if self._normalization == "none" or text.isascii():
            return text
        return self._normalizer.normalized(text)

    @functools.cached_property
    def _normalizer(self) -> TextNormalizer:
        from heedful.text.normalization import TextNormalizer  # a sentence in ASCII needs no rules

        return TextNormalizer(self._normalization)

    def unmark(self, marked: str) -> str:
        """Undo `mark`, except for the folding of case."""
        marked = marked.removeprefix(self.prefix) if self.prefix else marked
        return marked if self.in_bytes else marked.translate(_TRADE)


def splitter(words: Words, kind: str) -> pre_tokenizers.PreTokenizer:
    """Make the splitter of marked text into words, whose edges no piece crosses.

    Args:
        words: `whitespace` splits at white space only; `punctuation` also separates every digit
            and every punctuation mark or symbol (a run of one mark, like "...", stays whole).
        kind: kind of the tokenizer.

    Returns:
        A pre-tokenizer of the `tokenizers` library. A word keeps the one space before it; further
        spaces form a word of their own.
    """
    pattern = _word_pattern(words, Marking(kind, False).space)
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    if kind != "byte-bpe":
        return split
    # Split first: the expression is written for characters, not for their stand-ins.
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([split, bytes_of])


def _word_pattern(words: Words, space: str) -> str:
    letter = rf"[^{space}\s]"
    if words == "whitespace":
        body = rf"{letter}+"
    else:
        signs = rf"[\p{{P}}\p{{S}}&&[^{space}]]"
        body = rf"(?:\p{{N}}|({signs})\1*|[^{space}\s\p{{P}}\p{{S}}\p{{N}}]+)"
    return rf"{space}?{body}|{space}+(?={space}{letter})|{space}+|\s+"


OWN_PATTERNS = {_word_pattern(words, space) for words in get_args(Words) for space in (" ", MARK)}
"""Regular expressions of the tokenizers that are trained by Heedful."""


def _byte_table() -> dict[str, int]:
    """Return the table from GPT-2's characters for bytes (Radford 2019) to bytes.

    A byte that is a printable Latin-1 character is itself; the other bytes have the code points
    from U+0100 on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(0x100 + rank): byte for rank, byte in enumerate(others)})
    return table


_BYTE_OF = _byte_table()
_PIECE_OF = {byte: stand_in for stand_in, byte in _BYTE_OF.items()}


def byte_alphabet() -> list[str]:
    """Return the 256 characters for bytes, in the order of the bytes."""
    return sorted(_BYTE_OF, key=_BYTE_OF.__getitem__)


def piece_bytes(piece: str) -> bytes:
    """Return the bytes of a byte-level piece.

    Raises:
        KeyError: when the piece holds a character that stands for no byte.
    """
    return bytes(_BYTE_OF[stand_in] for stand_in in piece)


def bytes_piece(content: bytes) -> str:
    """Return the byte-level piece of some bytes."""
    return "".join(_PIECE_OF[byte] for byte in content)


_SPACELESS_RANGES = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x0F00, 0x0FFF),  # Tibetan
    (0x1000, 0x109F),  # Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x1950, 0x19FF),  # Tai Le, New Tai Lue, symbols of Khmer
    (0x1A20, 0x1AAF),  # Tai Tham
    (0xA9E0, 0xA9FF),  # Burmese, extended
    (0xAA60, 0xAA7F),
    (0x2E80, 0xA4CF),  # Chinese, Japanese and their punctuation
    (0xF900, 0xFAFF),
    (0xFE30, 0xFE4F),
    (0xFF00, 0xFFEF),  # full-width forms
    (0x20000, 0x3FFFF),
)
_SPACELESS = re.compile(
    "(?![\u3130-\u318f])"  # Hangul's letters: Korean puts spaces between words
    f"[{''.join(f'{chr(first)}-{chr(last)}' for first, last in _SPACELESS_RANGES)}]"
)
_UNWRITTEN = "\"'“”‘’«»()[]{}…—–-"
_BETWEEN_SPACES = re.compile(r"\S+")


@dataclass(frozen=True)
class TextPiece:
    """A part of a text.

    Args:
        text: unchanged substring; the pieces of a text, concatenated, are the text.
        glued: True if the piece ends inside a word, so that no space belongs there.
    """

    text: str
    glued: bool = False

    @property
    def gap(self) -> str:
        """The white space at its end."""
        return self.text[len(self.text.rstrip()) :]


def is_spaceless(character: str) -> bool:
    """Return True if a character belongs to a script without spaces between words."""
    return _SPACELESS.match(character) is not None


def joins_without_space(left: str, right: str) -> bool:
    """Return True if no space belongs between two texts, as in Chinese and Japanese.

    Thai, Lao, Burmese and Khmer have none between words, but one between sentences.
    """
    # Quotation marks and dashes belong to all scripts.
    ends = left.rstrip(_UNWRITTEN)[-1:] + right.lstrip(_UNWRITTEN)[:1]
    return any(end >= "\u2e80" and is_spaceless(end) for end in ends)


def is_of_word(character: str) -> bool:
    """Return True for a character of a word, or U+FFFD, which shows a part of a character.

    It is False for scripts without spaces, in which word edges cannot be seen.
    """
    if is_spaceless(character):
        return False
    mark = unicodedata.category(character).startswith("M")
    return mark or character.isalnum() or character == "\ufffd"


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return the spans of words between spaces, and of single characters of scripts without spaces.

    A combining mark stays with the character before it.
    """
    if not _SPACELESS.search(text):  # a fast path for most texts
        return [match.span() for match in _BETWEEN_SPACES.finditer(text)]
    spans: list[tuple[int, int]] = []
    start = 0
    for i, character in enumerate(text):
        if character.isspace():
            if start < i:
                spans.append((start, i))
            start = i + 1
        elif start < i and _are_separate(text[i - 1], character):
            spans.append((start, i))
            start = i
    if start < len(text):
        spans.append((start, len(text)))
    return spans


def _are_separate(left: str, right: str) -> bool:
    if unicodedata.category(right).startswith("M"):
        return False
    return is_spaceless(left) or is_spaceless(right)
