"""64-bit keys of texts, which tell equal and nearly equal ones apart without keeping them."""

from __future__ import annotations

import re
import unicodedata
from hashlib import blake2b

_NOT_LETTERS = re.compile(r"[\W_]+")


def plain_text(text: str) -> str:
    """The text in composed characters (NFC), with one space between words.

    Args:
        text: one side of a pair.
    """
    return " ".join((text if text.isascii() else unicodedata.normalize("NFC", text)).split())


def letters_of(text: str) -> str:
    """Letters and digits of a text, case folded; the plain text where there are none.

    Args:
        text: one side of a pair.
    """
    folded = text if text.isascii() else unicodedata.normalize("NFKC", text)
    return _NOT_LETTERS.sub("", folded.casefold()) or plain_text(text)


def text_key(text: str, salt: bytes = b"") -> int:
    """A hash of a text, 64 bits without sign, equal on all machines.

    Args:
        text: any.
        salt: other keys for another salt, of at most 64 bytes.
    """
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, key=salt).digest()
    return int.from_bytes(digest, "little")
