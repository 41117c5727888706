"""Normal forms of texts for comparisons, and 64-bit keys that replace the texts in memory."""

from __future__ import annotations

import re
import unicodedata
from hashlib import blake2b

# Words with these characters are code, markup or addresses, which belong to no language.
_CODE = re.compile(r"\S*(?:[_/\\`<>={}\[\]|@#*~]|:\S|\.\w)\S*")
_NOT_LETTERS = re.compile(r"[\W_]+")


def plain_text(text: str) -> str:
    """Return a text normalised to NFC, with one space between words.

    Args:
        text: text of one side.
    """
    return " ".join((text if text.isascii() else unicodedata.normalize("NFC", text)).split())


def letters_of(text: str) -> str:
    """Return the case-folded letters and digits of a text; the plain text if it has none.

    Args:
        text: text of one side.
    """
    # NFKC also maps full-width and other compatibility letters to ordinary ones.
    folded = text if text.isascii() else unicodedata.normalize("NFKC", text)
    return _NOT_LETTERS.sub("", folded.casefold()) or plain_text(text)


def without_code(text: str) -> str:
    """Return a text without words that look like code, markup or addresses.

    Args:
        text: text of one side.
    """
    return _CODE.sub(" ", text)


def text_key(text: str, salt: bytes = b"") -> int:
    """Hash a text to 64 bits, with the same result on all machines.

    Args:
        text: text to hash.
        salt: bytes, 64 or fewer, that select another hash function.
    """
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, key=salt).digest()
    return int.from_bytes(digest, "little")
