"""The printable stand-ins that byte-level pieces are spelled in, and the bytes they stand for.

The table is the one of GPT-2 (Radford 2019), which the `tokenizers` library writes: a byte that is
a printable Latin-1 character stands for itself; the others take the code points from U+0100 on,
in order.
"""

from __future__ import annotations


def _table() -> dict[str, int]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(0x100 + rank): byte for rank, byte in enumerate(others)})
    return table


_BYTE_OF = _table()
_PIECE_OF = {byte: stand_in for stand_in, byte in _BYTE_OF.items()}


def alphabet() -> list[str]:
    """The 256 stand-ins, in the order of their bytes."""
    return sorted(_BYTE_OF, key=_BYTE_OF.__getitem__)


def piece_bytes(piece: str) -> bytes:
    """The bytes a byte-level piece stands for.

    Raises:
        KeyError: when the piece holds a character outside the table.
    """
    return bytes(_BYTE_OF[stand_in] for stand_in in piece)


def bytes_piece(content: bytes) -> str:
    """The byte-level piece that stands for bytes."""
    return "".join(_PIECE_OF[byte] for byte in content)
