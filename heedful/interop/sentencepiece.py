"""SentencePiece's model files (Kudo 2018): the little of their format that a tokenizer needs.

A file is a protocol buffer: fields of a number and a wire type. The numbers below are those of the
published `sentencepiece_model.proto`; all other fields are passed over.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from heedful.errors import ModelError

_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_TEXT, _SCORE, _TYPE = 1, 2, 3
_MODEL_TYPE, _BYTE_FALLBACK, _UNK, _BOS, _EOS, _PAD = 3, 35, 40, 41, 42, 43
_NAME, _CHARSMAP, _DUMMY_PREFIX, _REMOVE_SPACES = 1, 2, 3, 4
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

_MODEL_TYPES: dict[int, Literal["unigram", "bpe"]] = {1: "unigram", 2: "bpe"}

Value = int | bytes


@dataclass(frozen=True)
class Piece:
    """An entry of the vocabulary; its place is its id."""

    text: str
    score: float
    type: int = NORMAL


@dataclass(frozen=True)
class SentencePieceModel:
    """What a model file says.

    Args:
        pieces: in the order of their ids.
        model_type: how text is cut.
        byte_fallback: characters without a piece become pieces of their bytes.
        unk, bos, eos, pad: ids; −1 for none.
        charsmap: compiled rules that characters are replaced by first; empty for none.
        add_dummy_prefix: a text gets a space before it.
        remove_extra_whitespaces: spaces at either end and repeated ones are dropped.
    """

    pieces: tuple[Piece, ...]
    model_type: Literal["unigram", "bpe"] = "unigram"
    byte_fallback: bool = False
    unk: int = 0
    bos: int = 1
    eos: int = 2
    pad: int = -1
    charsmap: bytes = b""
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True


def read_sentencepiece(file: Path) -> SentencePieceModel:
    """Read a model file.

    Raises:
        ModelError: when it is missing, damaged, or of a type that is not unigram or BPE.
    """
    try:
        return _parse(file.read_bytes(), str(file))
    except (ValueError, IndexError, TypeError, struct.error) as error:
        raise ModelError(
            f"This is no whole SentencePiece model: {error}",
            where=str(file),
            remedy="Copy the file again",
        ) from None
    except OSError as error:
        raise ModelError(
            f"Cannot be read: {error.strerror}", where=str(file), remedy="Copy the file again"
        ) from None


def write_sentencepiece(model: SentencePieceModel) -> bytes:
    """The content of a model file; `read_sentencepiece` reads it back equal."""
    pieces = b"".join(
        _field(
            _PIECES,
            _field(_TEXT, piece.text.encode())
            + _key(_SCORE, _FIXED32)
            + struct.pack("<f", piece.score)
            + _field(_TYPE, piece.type),
        )
        for piece in model.pieces
    )
    number = {name: value for value, name in _MODEL_TYPES.items()}[model.model_type]
    trainer = (
        _field(_MODEL_TYPE, number)
        + _field(_BYTE_FALLBACK, int(model.byte_fallback))
        + _field(_UNK, model.unk)
        + _field(_BOS, model.bos)
        + _field(_EOS, model.eos)
        + _field(_PAD, model.pad)
    )
    normalizer = (
        _field(_NAME, b"user_defined" if model.charsmap else b"identity")
        + _field(_CHARSMAP, model.charsmap)
        + _field(_DUMMY_PREFIX, int(model.add_dummy_prefix))
        + _field(_REMOVE_SPACES, int(model.remove_extra_whitespaces))
    )
    return pieces + _field(_TRAINER, trainer) + _field(_NORMALIZER, normalizer)


def _parse(content: bytes, where: str) -> SentencePieceModel:
    pieces: list[Piece] = []
    trainer: dict[int, Value] = {}
    normalizer: dict[int, Value] = {}
    for number, value in _fields(content):
        if number == _PIECES:
            pieces.append(_piece(_bytes(value)))
        elif number == _TRAINER:
            trainer = dict(_fields(_bytes(value)))
        elif number == _NORMALIZER:
            normalizer = dict(_fields(_bytes(value)))
    if not pieces:
        raise ValueError("it has no pieces")
    kind = trainer.get(_MODEL_TYPE, 1)
    if kind not in _MODEL_TYPES:
        raise ModelError(
            "This SentencePiece model is of type word or char",
            where=where,
            remedy="Only the types unigram and bpe can be imported",
        )
    unk, bos, eos, pad = (
        _signed(_int(trainer.get(field, default)))
        for field, default in ((_UNK, 0), (_BOS, 1), (_EOS, 2), (_PAD, -1))
    )
    if not 0 <= unk < len(pieces):
        raise ValueError(f"the unknown piece is {unk} of {len(pieces)}")
    return SentencePieceModel(
        pieces=tuple(pieces),
        model_type=_MODEL_TYPES[_int(kind)],
        byte_fallback=bool(trainer.get(_BYTE_FALLBACK, 0)),
        unk=unk,
        bos=bos,
        eos=eos,
        pad=pad,
        charsmap=_bytes(normalizer.get(_CHARSMAP, b"")),
        add_dummy_prefix=bool(normalizer.get(_DUMMY_PREFIX, 1)),
        remove_extra_whitespaces=bool(normalizer.get(_REMOVE_SPACES, 1)),
    )


def _piece(content: bytes) -> Piece:
    fields = dict(_fields(content))
    if _TEXT not in fields:
        raise ValueError("a piece has no text")
    (score,) = struct.unpack("<f", _bytes(fields.get(_SCORE, bytes(4))))
    return Piece(_bytes(fields[_TEXT]).decode(), score, _int(fields.get(_TYPE, NORMAL)))


def _fields(content: bytes) -> Iterator[tuple[int, Value]]:
    """Numbers and values, in their order; numbers of fixed width as their bytes."""
    at = 0
    while at < len(content):
        key, at = _read_varint(content, at)
        wire = key & 7
        if wire == _VARINT:
            value, at = _read_varint(content, at)
            yield key >> 3, value
            continue
        if wire == _BYTES:
            size, at = _read_varint(content, at)
        elif wire in (_FIXED32, _FIXED64):
            size = 4 if wire == _FIXED32 else 8
        else:
            raise ValueError(f"wire type {wire} at byte {at}")
        if at + size > len(content):
            raise ValueError(f"it ends inside a field at byte {at}")
        yield key >> 3, content[at : at + size]
        at += size


def _read_varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
        if shift >= 70:
            raise ValueError(f"a number without an end at byte {at}")


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _key(number: int, wire: int) -> bytes:
    return _varint(number << 3 | wire)


def _field(number: int, value: Value) -> bytes:
    if isinstance(value, int):
        return _key(number, _VARINT) + _varint(value)
    return _key(number, _BYTES) + _varint(len(value)) + value


def _signed(value: int) -> int:
    """A 32-bit number from the 64 bits that a negative one is written in."""
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


def _int(value: Value) -> int:
    if not isinstance(value, int):
        raise TypeError("bytes where a number belongs")
    return value


def _bytes(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError("a number where bytes belong")
    return value
