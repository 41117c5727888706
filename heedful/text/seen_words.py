"""Words of the texts that a model learned to write, as a Bloom filter (Bloom 1970).

The filter says "certainly not seen" or "probably seen". A word is a run of letters, case aside;
the parts of "e-mail" are two. Words of scripts without spaces and words of three letters and fewer
are left out: most of them are seen, or are no words.
"""

from __future__ import annotations

import base64
import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Self

from heedful.text.pretokenization import is_spaceless

FEWEST_LETTERS = 4
MOST_TEXTS = 2_000_000
"""Texts that are read at most: 20 seconds of one core."""
HASHES = 6
BITS_A_WORD = 9
"""With 6 places a word, at most 1.7 % of other words then count as seen."""
SMALLEST = 1 << 10

_WORD = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True)
class SeenWords:
    """A set of words that may say yes for a word that is not in it, and never no for one that is.

    Args:
        bits: the filter, 8 places a byte, the lowest first; a power of two of places.
        count: number of distinct words.
    """

    bits: bytes = field(repr=False)
    count: int

    @classmethod
    def of(cls, texts: Iterable[str]) -> Self:
        """Return the words of texts, the first `MOST_TEXTS` of them."""
        words = {word for text in islice(texts, MOST_TEXTS) for *_, word in word_spans(text)}
        places = SMALLEST
        while places < BITS_A_WORD * len(words):
            places *= 2
        bits = bytearray(places // 8)
        for word in words:
            for place in _places(word, places):
                bits[place >> 3] |= 1 << (place & 7)
        return cls(bytes(bits), len(words))

    def __contains__(self, word: str) -> bool:
        places = _places(_folded(word), 8 * len(self.bits))
        return all(self.bits[place >> 3] >> (place & 7) & 1 for place in places)

    def __or__(self, other: SeenWords) -> SeenWords:
        """Return the words of both; a word of both counts twice."""
        size = max(len(self.bits), len(other.bits))
        # A place is a hash modulo a power of two, so a filter that is repeated is a larger one.
        one, two = (each.bits * (size // len(each.bits)) for each in (self, other))
        joined = int.from_bytes(one, "little") | int.from_bytes(two, "little")
        return SeenWords(joined.to_bytes(size, "little"), self.count + other.count)

    def plain(self) -> dict[str, Any]:
        """Return the filter as JSON data."""
        bits = base64.b64encode(self.bits).decode("ascii")
        return {"words": self.count, "hashes": HASHES, "bits": bits}

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> Self:
        """Read what `plain` gives.

        Raises:
            ValueError: when the content is no filter of this form.
        """
        bits, count = base64.b64decode(content["bits"], validate=True), content["words"]
        is_whole = len(bits) >= SMALLEST // 8 and len(bits) & (len(bits) - 1) == 0
        if content["hashes"] != HASHES or not isinstance(count, int) or not is_whole:
            raise ValueError("bits")
        return cls(bits, count)


def word_spans(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and folded form of each word of a text that a filter holds."""
    for match in _WORD.finditer(text):
        word = match[0]
        if len(word) >= FEWEST_LETTERS and not is_spaceless(word[0]):
            yield *match.span(), _folded(word)


def _folded(word: str) -> str:
    return unicodedata.normalize("NFC", word).casefold()


def _places(word: str, size: int) -> Iterator[int]:
    """Yield the places of a word, by two hashes (Kirsch and Mitzenmacher 2006)."""
    digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    start, step = (int.from_bytes(half, "little") for half in (digest[:8], digest[8:]))
    # An odd step meets every place of a power of two.
    return ((start + i * (step | 1)) % size for i in range(HASHES))
