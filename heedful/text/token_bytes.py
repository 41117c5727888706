"""The bytes of each token, for grammars that work on bytes."""

from __future__ import annotations

import re

from heedful.errors import ConfigError
from heedful.text.imported_tokenizer import ImportedTokenizer
from heedful.text.pretokenization import MARK, piece_bytes
from heedful.text.tokenizer import TextTokenizer, Tokenizer

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_JOINED = {"Replace", "Metaspace", "Fuse", "ByteFallback", "Strip"}
"""Decoders of SentencePiece's pieces, whose texts are joined without a change."""


def token_bytes(tokenizer: TextTokenizer) -> list[bytes]:
    """Return the bytes that each id adds inside a text; none for special tokens.

    Args:
        tokenizer: tokenizer of bytes, of characters, or of pieces with marked spaces.

    Raises:
        ConfigError: when the text of a token depends on its neighbours, or the tokenizer does not
            tell its tokens.
    """
    if isinstance(tokenizer, Tokenizer):
        special = {tokenizer.pad, tokenizer.bos, tokenizer.eos, tokenizer.unk, tokenizer.mask}
        special |= set(tokenizer.sentinels)
        marked = not tokenizer.marking.in_bytes
        return [
            b"" if id in special else _spaced(content) if marked else content
            for id, content in enumerate(tokenizer.contents)
        ]
    if isinstance(tokenizer, ImportedTokenizer):
        steps = tokenizer.decoders
        if steps == {"ByteLevel"}:
            return [_of_letters(piece) for piece in tokenizer.spoken()]
        if steps & {"Replace", "Metaspace"} and steps <= _JOINED:
            falls_back = "ByteFallback" in steps
            return [_of_piece(piece, falls_back) for piece in tokenizer.spoken()]
    raise ConfigError(
        "The tokenizer of this model does not tell the bytes of a token by itself",
        where="tokenizer.json",
        remedy="Take a model with a byte-level or SentencePiece tokenizer",
    )


def _spaced(content: bytes) -> bytes:
    # The mark of a piece is a space; a space of a piece stands for the mark itself.
    space, mark = b" ", MARK.encode()
    return mark.join(part.replace(mark, space) for part in content.split(space))


def _of_letters(piece: str) -> bytes:
    try:
        return piece_bytes(piece)
    except KeyError:  # an added token, which no text is made of
        return b""


def _of_piece(piece: str, falls_back: bool) -> bytes:
    byte = _BYTE.fullmatch(piece) if falls_back else None
    return bytes([int(byte[1], 16)]) if byte else piece.replace(MARK, " ").encode()
