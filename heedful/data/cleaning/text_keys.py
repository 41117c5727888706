"""Forms of texts that are compared, and 64-bit keys, which are kept in their place."""

from __future__ import annotations

import re
import unicodedata
from hashlib import blake2b

# Words with such characters are code, markup or addresses, in no language.
_CODE = re.compile(r"\S*(?:[_/\\`<>={}\[\]|@#*~]|:\S|\.\w)\S*")
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


def without_code(text: str) -> str:
    """The text without words that look like code, markup or addresses.

    Args:
        text: one side of a pair.
    """
    return _CODE.sub(" ", text)


def text_key(text: str, salt: bytes = b"") -> int:
    """A hash of a text, 64 bits without sign, equal on all machines.

    Args:
        text: any.
        salt: other keys for another salt, of at most 64 bytes.
    """
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, key=salt).digest()
    return int.from_bytes(digest, "little")
