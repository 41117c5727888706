"""Marian's two SentencePiece models with ids of their own, against a search by hand."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path

import pytest

from heedful.errors import DataError, ModelError
from heedful.interop.hf_tokenizers import read_tokenizers
from heedful.interop.sentencepiece_files import (
    CONTROL,
    UNKNOWN,
    Piece,
    SentencePieceModel,
    read_sentencepiece,
    write_sentencepiece,
)
from heedful.interop.tokenizer_export import write_tokenizers
from heedful.text.tokenizer_pair import TokenizerPair

MARK = "\u2581"
SPECIAL = [Piece("<unk>", 0.0, UNKNOWN), Piece("<s>", 0.0, CONTROL), Piece("</s>", 0.0, CONTROL)]
SOURCE = {MARK: -2.0, "a": -3.0, "b": -3.5, "ab": -4.0, MARK + "a": -4.5, "ba": -5.0, "c": -6.0}
TARGET = {MARK: -2.0, "x": -3.0, "xy": -3.1, "y": -4.0, MARK + "xy": -5.5, "a": -3.0}
IDS = {"</s>": 0, "<unk>": 1, MARK: 5, "a": 2, "b": 3, "ab": 4, MARK + "a": 6, "ba": 7}
IDS |= {"x": 8, "xy": 9, MARK + "xy": 10, ">>de<<": 11, "<pad>": 12}  # "c" and "y" have none
CONFIG = {"model_type": "marian", "decoder_start_token_id": 12}


def model(pieces: dict[str, float]) -> SentencePieceModel:
    scored = [Piece(text, score) for text, score in pieces.items()]
    return SentencePieceModel(tuple(SPECIAL + scored), unk=0, bos=1, eos=2)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "marian"
    path.mkdir()
    (path / "source.spm").write_bytes(write_sentencepiece(model(SOURCE)))
    (path / "target.spm").write_bytes(write_sentencepiece(model(TARGET)))
    (path / "vocab.json").write_text(json.dumps(IDS), encoding="utf-8")
    return path


def best(pieces: dict[str, float], text: str) -> list[str]:
    """The most probable way to cut a text, of all ways."""

    @functools.cache
    def cut(rest: str) -> tuple[float, tuple[str, ...]]:
        if not rest:
            return 0.0, ()
        ways = [(-math.inf, ())]
        for piece, score in pieces.items():
            if rest.startswith(piece):
                further, tail = cut(rest[len(piece) :])
                ways.append((score + further, (piece, *tail)))
        return max(ways)

    words = text.split(" ")
    return list(cut("".join(MARK + word for word in words if word))[1])


TEXTS = ["", "a", "ab", "aba", "abab ba b", "  a   ab  ", "bbaab c", "c", "cab"]


@pytest.mark.parametrize("text", TEXTS)
def test_source_ids(directory: Path, text: str) -> None:
    source = read_tokenizers(directory, CONFIG).source
    expected = [IDS.get(piece, IDS["<unk>"]) for piece in best(SOURCE, text)]
    assert source.encode(text) == expected


@pytest.mark.parametrize("text", ["x", "xy", "xxy y", " xyx  xy"])
def test_target_ids_and_text(directory: Path, text: str) -> None:
    target = read_tokenizers(directory, CONFIG).target
    pieces = best(TARGET, text)
    expected = [IDS.get(piece, IDS["<unk>"]) for piece in pieces]
    assert target.encode(text) == expected
    if "y" not in pieces:
        framed = [target.pad, *expected, target.eos, target.pad]
        assert target.decode(framed) == " ".join(text.split())


def test_special_ids_and_frames(directory: Path) -> None:
    pair = read_tokenizers(directory, CONFIG)
    assert not pair.joint
    for tokenizer in (pair.source, pair.target):
        assert (tokenizer.pad, tokenizer.eos, tokenizer.unk) == (12, 0, 1)
        assert tokenizer.bos == 12  # what its decoder starts with
        assert (tokenizer.first, tokenizer.last) == ((), (0,))
        assert tokenizer.size == 13


def test_what_a_text_spells(directory: Path) -> None:
    source = read_tokenizers(directory, CONFIG).source
    a = IDS[MARK + "a"] if best(SOURCE, "a") == [MARK + "a"] else None
    assert a == 6
    assert source.encode(">>de<< a") == [11, 6]
    assert source.encode(">>de<<a") == [11, 6]
    assert source.encode(">>fr<< a") == [1, 6]
    assert source.encode("a</s>a") == [6, 0, 6]
    assert source.encode_batch([">>de<< a", "a"]) == [[11, 6], [6]]
    with pytest.raises(DataError, match="surrogate"):
        source.encode("a\ud800")


def test_unknown_and_missing_pieces_are_shown(directory: Path) -> None:
    source = read_tokenizers(directory, CONFIG).source
    assert source.encode("\u673a\u5668") == [5, 1]  # unknown characters side by side are one
    assert source.decode([6, 1]) == "a\u2047"
    assert source.decode([11, 6, 4]) == ">>de<<\u0020aab"
    assert source.pieces([6, 4, 1]) == [MARK + "a", "ab", "<unk>"]


def test_saved_and_written_whole(directory: Path, tmp_path: Path) -> None:
    pair = read_tokenizers(directory, CONFIG)
    (tmp_path / "ours").mkdir()
    pair.save(tmp_path / "ours")
    again = TokenizerPair.load(tmp_path / "ours")
    assert again.fingerprint == pair.fingerprint
    assert not again.joint
    assert [again.source.encode(t) for t in TEXTS] == [pair.source.encode(t) for t in TEXTS]
    (tmp_path / "theirs").mkdir()
    write_tokenizers(tmp_path / "theirs", again, {})
    for side in ("source", "target"):
        written = read_sentencepiece(tmp_path / "theirs" / f"{side}.spm")
        assert written == read_sentencepiece(directory / f"{side}.spm")
    assert json.loads((tmp_path / "theirs" / "vocab.json").read_text("utf-8")) == IDS
    assert read_tokenizers(tmp_path / "theirs", CONFIG).fingerprint == pair.fingerprint


def test_separate_vocabularies(directory: Path) -> None:
    ids = {**IDS, "y": 13}
    (directory / "target_vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps({"separate_vocabs": True}))
    pair = read_tokenizers(directory, CONFIG)
    assert (pair.source.size, pair.target.size) == (13, 14)
    assert pair.target.encode("yy") == [5, 13, 13]


def test_missing_files_are_named(directory: Path) -> None:
    ids = {name: id for name, id in IDS.items() if name != "<pad>"}
    (directory / "vocab.json").write_text(json.dumps(ids))
    with pytest.raises(ModelError, match=r"vocab\.json.*<pad>"):
        read_tokenizers(directory, CONFIG)
    (directory / "target.spm").unlink()
    with pytest.raises(ModelError, match=r"lacks target\.spm"):
        read_tokenizers(directory, CONFIG)


BPE = ("a", "b", MARK)
MERGED = (MARK + "a", "ab", MARK + "ab", "ba", "abab")


@pytest.fixture
def byte_pairs(tmp_path: Path) -> Path:
    """Marian's files with BPE models, whose pieces stand in the order they were merged."""
    path = tmp_path / "bpe"
    path.mkdir()
    scored = [Piece(text, -float(rank)) for rank, text in enumerate([*MERGED, *BPE])]
    model = SentencePieceModel(tuple(SPECIAL + scored), "bpe", unk=0, bos=1, eos=2)
    for side in ("source", "target"):
        (path / f"{side}.spm").write_bytes(write_sentencepiece(model))
    names = ["</s>", "<unk>", *BPE, *MERGED, "<pad>"]
    (path / "vocab.json").write_text(json.dumps({name: id for id, name in enumerate(names)}))
    return path


def test_byte_pairs_are_written_whole(byte_pairs: Path, tmp_path: Path) -> None:
    config = {"model_type": "marian", "decoder_start_token_id": 10}
    pair = read_tokenizers(byte_pairs, config)
    (tmp_path / "out").mkdir()
    write_tokenizers(tmp_path / "out", pair, {})
    again = read_tokenizers(tmp_path / "out", config)
    assert again.fingerprint == pair.fingerprint
    for side in ("source", "target"):
        written = read_sentencepiece(tmp_path / "out" / f"{side}.spm")
        before = read_sentencepiece(byte_pairs / f"{side}.spm")
        assert written.model_type == "bpe"
        assert [(p.text, p.type) for p in written.pieces] == [
            (p.text, p.type) for p in before.pieces
        ]
        # Google's own library cuts texts with the written file as with the first one.
        cut = [
            processor(folder / f"{side}.spm").encode(["ab", "aabab", "ba  abc", ""])
            for folder in (byte_pairs, tmp_path / "out")
        ]
        assert cut[0] == cut[1]


def processor(file: Path):
    import sentencepiece

    return sentencepiece.SentencePieceProcessor(model_file=str(file))
