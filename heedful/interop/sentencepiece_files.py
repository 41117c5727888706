"""Conversion between SentencePiece models (Kudo 2018) and tokenizers of the `tokenizers` library.

The files are protocol buffers. Their schema comes with the `sentencepiece` package, which is
imported only when such a file is read or written.
"""

from __future__ import annotations

import base64
import importlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from heedful.errors import ModelError
from heedful.interop.hf_files import read_bytes
from heedful.text.pretokenization import MARK
from heedful.text.tokenizers_library import library_errors

# Types of pieces in the schema, `ModelProto.SentencePiece.Type`.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

_MODEL_TYPES: dict[int, Literal["unigram", "bpe"]] = {1: "unigram", 2: "bpe"}
_BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")


@dataclass(frozen=True)
class Piece:
    """An entry of the vocabulary, whose index is its id.

    Args:
        text: text of the piece.
        score: log-probability (unigram), or minus the rank of the merge (BPE).
        type: type of the piece.
    """

    text: str
    score: float
    type: int = NORMAL


@dataclass(frozen=True)
class SentencePieceModel:
    """The parts of a model file that a tokenizer needs.

    Args:
        pieces: pieces in the order of their ids.
        model_type: segmentation algorithm.
        byte_fallback: segmentation of characters without a piece into byte pieces.
        unk, bos, eos, pad: ids of special pieces; −1 for none.
        charsmap: compiled rules of character normalisation; empty for none.
        add_dummy_prefix: addition of a space before a text.
        remove_extra_whitespaces: removal of spaces at both ends and of repeated spaces.
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
        ModelError: when the file is missing, damaged, or of another type than unigram and BPE, or
            when the `sentencepiece` package is not installed.
    """
    proto = _schema(str(file)).ModelProto()
    content = read_bytes(file)
    try:
        proto.ParseFromString(content)
        return _from_proto(proto, str(file))
    except ModelError:
        raise
    # DecodeError of protobuf, whose class cannot be named here: the package is optional.
    except Exception as error:
        raise ModelError(
            f"This is no whole SentencePiece model: {error}",
            where=str(file),
            remedy="Copy the file again",
        ) from None


def write_sentencepiece(model: SentencePieceModel, where: str = "sentencepiece") -> bytes:
    """Return the content of a model file, which `read_sentencepiece` reads back equal.

    Raises:
        ModelError: when the `sentencepiece` package is not installed.
    """
    proto = _schema(where).ModelProto()
    for piece in model.pieces:
        proto.pieces.add(piece=piece.text, score=piece.score, type=piece.type)
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    trainer.model_type = {name: number for number, name in _MODEL_TYPES.items()}[model.model_type]
    trainer.byte_fallback = model.byte_fallback
    trainer.unk_id, trainer.bos_id = model.unk, model.bos
    trainer.eos_id, trainer.pad_id = model.eos, model.pad
    normalizer.name = "user_defined" if model.charsmap else "identity"
    normalizer.precompiled_charsmap = model.charsmap
    normalizer.add_dummy_prefix = model.add_dummy_prefix
    normalizer.remove_extra_whitespaces = model.remove_extra_whitespaces
    content: bytes = proto.SerializeToString()
    return content


def _schema(where: str) -> Any:
    """Import the module with the schema of the file format."""
    try:
        return importlib.import_module("sentencepiece.sentencepiece_model_pb2")
    except ImportError as error:
        raise ModelError(
            f"The package {error.name} is not installed, which SentencePiece files need",
            where=where,
            remedy="Install it with: pip install 'heedful[sentencepiece]'",
        ) from None


def _from_proto(proto: Any, where: str) -> SentencePieceModel:
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    # An empty or foreign protocol buffer parses without an error.
    if not proto.pieces:
        raise ValueError("it has no pieces")
    if not all(piece.HasField("piece") for piece in proto.pieces):
        raise ValueError("a piece has no text")
    if trainer.model_type not in _MODEL_TYPES:
        raise ModelError(
            "This SentencePiece model is of type word or char",
            where=where,
            remedy="Only the types unigram and bpe can be imported",
        )
    if not 0 <= trainer.unk_id < len(proto.pieces):
        raise ValueError(f"the unknown piece is {trainer.unk_id} of {len(proto.pieces)}")
    return SentencePieceModel(
        pieces=tuple(Piece(piece.piece, piece.score, piece.type) for piece in proto.pieces),
        model_type=_MODEL_TYPES[trainer.model_type],
        byte_fallback=trainer.byte_fallback,
        unk=trainer.unk_id,
        bos=trainer.bos_id,
        eos=trainer.eos_id,
        pad=trainer.pad_id,
        charsmap=normalizer.precompiled_charsmap,
        add_dummy_prefix=normalizer.add_dummy_prefix,
        remove_extra_whitespaces=normalizer.remove_extra_whitespaces,
    )


def from_sentencepiece(
    file: Path,
    *,
    extra: int = 0,
    legacy: bool = False,
    before: Sequence[normalizers.Normalizer] = (),
) -> tuple[tokenizers.Tokenizer, SentencePieceModel]:
    """Read a model file as a tokenizer of the `tokenizers` library.

    Args:
        file: model file.
        extra: number of T5's sentinels `<extra_id_0>` … to append (Raffel 2020).
        legacy: space after special tokens inside a text too, as in older versions; for BPE only.
        before: steps before those of the file.

    Raises:
        ModelError: when the file cannot be read.
    """
    model = read_sentencepiece(file)
    # Counted from the end of the vocabulary: `<extra_id_0>` has the highest id.
    sentinels = [f"<extra_id_{i}>" for i in reversed(range(extra))]

    def unusable(message: str) -> ModelError:
        return ModelError(
            f"The pieces and rules cannot be used: {message}",
            where=str(file),
            remedy="The file is damaged; copy it again",
        )

    with library_errors(unusable):
        unigram = model.model_type == "unigram"
        library = _unigram(model, sentinels) if unigram else _bpe(model, legacy)
        if steps := [*before, *_normalizers(model)]:
            library.normalizer = normalizers.Sequence(steps)
    added = [
        AddedToken(piece.text, normalized=False, special=piece.type == CONTROL)
        for piece in model.pieces
        # Pieces of both types are matched as a whole in a text; control pieces are left out of
        # decoded text.
        if piece.type in (CONTROL, USER_DEFINED)
    ]
    added += [AddedToken(name, normalized=False, special=True) for name in sentinels]
    library.add_tokens(added)
    return library, model


def to_sentencepiece(state: Mapping[str, Any]) -> SentencePieceModel:
    """Convert the JSON state of a tokenizer from `from_sentencepiece` back to its model."""
    model = state["model"]
    # SentencePiece merges the pair with the highest score first, so scores fall with the ids.
    if model["type"] == "BPE":
        vocabulary = sorted(model["vocab"], key=model["vocab"].get)
        unk = model["vocab"][model["unk_token"]]
        scored: Sequence[tuple[str, float]] = [
            (text, -float(id)) for id, text in enumerate(vocabulary)
        ]
    else:
        scored, unk = model["vocab"], model["unk_id"]
    byte_fallback = model.get("byte_fallback", False)
    added = {
        token["content"]: CONTROL if token["special"] else USER_DEFINED
        for token in state["added_tokens"]
    }

    def piece_type(id: int, text: str) -> int:
        if id == unk:
            return UNKNOWN
        if byte_fallback and _BYTE_PIECE.fullmatch(text):
            return BYTE
        return added.get(text, NORMAL)

    pieces = tuple(
        Piece(text, score, piece_type(id, text)) for id, (text, score) in enumerate(scored)
    )
    ids = {piece.text: id for id, piece in enumerate(pieces)}
    normalizer = state["normalizer"] or {"normalizers": []}
    steps = {step["type"]: step for step in normalizer["normalizers"]}
    # Base64 in JSON, raw bytes in the protocol buffer.
    charsmap = steps["Precompiled"]["precompiled_charsmap"] if "Precompiled" in steps else ""
    return SentencePieceModel(
        pieces=pieces,
        model_type="bpe" if model["type"] == "BPE" else "unigram",
        byte_fallback=byte_fallback,
        unk=unk,
        bos=ids.get("<s>", -1),
        eos=ids.get("</s>", -1),
        pad=ids.get("<pad>", -1),
        charsmap=base64.b64decode(charsmap),
        add_dummy_prefix=state["pre_tokenizer"]["prepend_scheme"] != "never",
        remove_extra_whitespaces="Replace" in steps,
    )


def _unigram(model: SentencePieceModel, sentinels: list[str]) -> tokenizers.Tokenizer:
    scored = [(piece.text, piece.score) for piece in model.pieces]
    # Sentinels are part of the model's vocabulary, so that their ids follow the pieces.
    scored += [(name, 0.0) for name in sentinels]
    library = tokenizers.Tokenizer(
        models.Unigram(scored, unk_id=model.unk, byte_fallback=model.byte_fallback)
    )
    prefix = "always" if model.add_dummy_prefix else "never"
    library.pre_tokenizer = pre_tokenizers.Metaspace(MARK, prepend_scheme=prefix, split=True)
    library.decoder = decoders.Metaspace(MARK, prepend_scheme=prefix, split=True)
    return library


def _bpe(model: SentencePieceModel, legacy: bool) -> tokenizers.Tokenizer:
    ids = {piece.text: id for id, piece in enumerate(model.pieces)}
    library = tokenizers.Tokenizer(
        models.BPE(
            vocab=ids,
            merges=_merges(ids),
            unk_token=model.pieces[model.unk].text,
            # A run of unknown characters is one unknown token, as in SentencePiece.
            fuse_unk=True,
            byte_fallback=model.byte_fallback,
        )
    )
    # `first` puts the space at the beginning of the text only.
    prefix = ("always" if legacy else "first") if model.add_dummy_prefix else "never"
    library.pre_tokenizer = pre_tokenizers.Metaspace(MARK, prepend_scheme=prefix, split=False)
    # Bytes are joined before the text is fused: a character may be split over several tokens.
    back = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    if model.add_dummy_prefix:
        # The decoder removes the dummy prefix that the encoder has added, exactly one space.
        back.append(decoders.Strip(content=" ", left=1))
    library.decoder = decoders.Sequence(back)
    return library


def _normalizers(model: SentencePieceModel) -> list[normalizers.Normalizer]:
    steps: list[normalizers.Normalizer] = []
    if model.charsmap:
        steps.append(normalizers.Precompiled(model.charsmap))
    if model.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex("^ +| +$"), "")]
        steps += [normalizers.Replace(Regex(" {2,}"), " ")]
    return steps


def _merges(ids: Collection[str]) -> list[tuple[str, str]]:
    """Return the merges of a BPE vocabulary, whose pieces are in the order of their merges.

    All pairs of pieces that make up a piece are listed, the one with the shortest left part first.
    """
    merges: list[tuple[str, str]] = []
    for piece in ids:
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            # The file has no merges; SentencePiece merges any two neighbours whose union is a
            # piece.
            if left in ids and right in ids:
                merges.append((left, right))
    return merges
