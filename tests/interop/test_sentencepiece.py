"""SentencePiece's files, written for Google's library, read from it, and damaged ones."""

from __future__ import annotations

import dataclasses
import importlib
import os
import random
import sys
from pathlib import Path

import pytest

from heedful.errors import ModelError
from heedful.interop.sentencepiece_files import (
    BYTE,
    CONTROL,
    UNKNOWN,
    USER_DEFINED,
    Piece,
    SentencePieceModel,
    read_sentencepiece,
    write_sentencepiece,
)

PIECES = (
    Piece("<unk>", 0.0, UNKNOWN),
    Piece("</s>", 0.0, CONTROL),
    Piece("\u2581the", -2.5),
    Piece("日本", -3.25),
    Piece("<mark>", 0.0, USER_DEFINED),
    Piece("<0x0A>", -10.0, BYTE),
)
MODELS = [
    SentencePieceModel(PIECES),
    SentencePieceModel(
        PIECES, "bpe", byte_fallback=True, unk=0, bos=-1, eos=1, pad=-1, charsmap=bytes(range(256)),
        add_dummy_prefix=False, remove_extra_whitespaces=True,
    ),
]  # fmt: skip


@pytest.mark.parametrize("model", MODELS, ids=["unigram", "bpe"])
def test_what_is_written_is_read(tmp_path: Path, model: SentencePieceModel) -> None:
    (tmp_path / "m.model").write_bytes(write_sentencepiece(model))
    assert read_sentencepiece(tmp_path / "m.model") == model


def protobuf():
    """The published format, compiled by Google's library."""
    return importlib.import_module("sentencepiece.sentencepiece_model_pb2")


@pytest.mark.parametrize("model", MODELS, ids=["unigram", "bpe"])
def test_googles_library_reads_ours(model: SentencePieceModel) -> None:
    sentencepiece = importlib.import_module("sentencepiece")
    # Byte pieces must be all 256, and rules whole.
    model = dataclasses.replace(
        model, pieces=model.pieces[:-1], charsmap=b"", byte_fallback=False, add_dummy_prefix=True
    )
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(write_sentencepiece(model))
    ids = range(processor.get_piece_size())
    assert [(processor.id_to_piece(id), processor.get_score(id)) for id in ids] == [
        (piece.text, piece.score) for piece in model.pieces
    ]
    assert [id for id in ids if processor.is_control(id)] == [1]
    assert [id for id in ids if processor.is_unknown(id)] == [0]
    assert processor.encode("the<mark>") == [2, 4] if model.model_type == "unigram" else [0, 4]


def test_without_the_package_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece.sentencepiece_model_pb2", None)
    with pytest.raises(ModelError, match=r"m\.model.*pip install 'heedful\[sentencepiece\]'"):
        read_sentencepiece(tmp_path / "m.model")


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.model")
    with pytest.raises(ModelError, match="no regular file"):
        read_sentencepiece(tmp_path / "m.model")


def test_we_read_googles(tmp_path: Path) -> None:
    """With fields that we pass over, of every wire type, and defaults left out."""
    proto = protobuf().ModelProto()
    proto.pieces.add(piece="<unk>", score=0.0, type=2)
    proto.pieces.add(piece="\u2581", score=-1.5)
    proto.trainer_spec.input.append("corpus.txt")
    proto.trainer_spec.character_coverage = 0.9995
    proto.trainer_spec.vocab_size = 2
    proto.trainer_spec.pad_id = -1
    proto.trainer_spec.bos_id = -1
    proto.normalizer_spec.name = "nmt_nfkc"
    proto.normalizer_spec.escape_whitespaces = True
    file = tmp_path / "m.model"
    file.write_bytes(proto.SerializeToString())
    found = read_sentencepiece(file)
    assert found == SentencePieceModel(
        (Piece("<unk>", 0.0, UNKNOWN), Piece("\u2581", -1.5)), bos=-1, eos=2
    )


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-3],
        lambda content: content[:-100],  # inside the rules
        lambda content: b"",
        lambda content: b"\xff" * 40,
        lambda content: b"not a model at all",
    ],
)
def test_damage_is_told(tmp_path: Path, damage) -> None:
    file = tmp_path / "m.model"
    file.write_bytes(damage(write_sentencepiece(MODELS[1])))
    with pytest.raises(ModelError) as error:
        read_sentencepiece(file)
    assert str(file) in str(error.value)


def test_any_bytes_are_a_model_or_a_model_error(tmp_path: Path) -> None:
    draw = random.Random(0)
    whole = write_sentencepiece(MODELS[1])
    file = tmp_path / "m.model"
    for _ in range(300):
        content = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            content[draw.randrange(len(content))] = draw.randrange(256)
        file.write_bytes(content[: draw.randint(1, len(content))])
        try:
            read_sentencepiece(file)
        except ModelError:
            continue


def test_a_model_of_words_is_refused(tmp_path: Path) -> None:
    proto = protobuf().ModelProto()
    proto.pieces.add(piece="the", score=0.0)
    proto.trainer_spec.model_type = 3
    (tmp_path / "m.model").write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match="word or char"):
        read_sentencepiece(tmp_path / "m.model")
