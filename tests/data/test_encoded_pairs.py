"""Encoded corpora: the tokenizer's ids, in a cache that is right or made anew."""

from __future__ import annotations

import errno
import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from heedful.data.corpus_spec import CorpusSpec, DataSpec
from heedful.data.encoded_pairs import EncodedPairs, encode_corpora, epoch_batches, select_pairs
from heedful.data.pair_corpus import SIDES
from heedful.errors import DataError, RunError
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_pair

PAIRS = [
    ("the dog runs", "der hund rennt"),
    ("", "leer"),
    ("a  cat é ", " eine katze"),
    ("the dog and the cat run", "der hund und die katze rennen"),
]


@cache
def tokenizers(joint: bool = False) -> TokenizerPair:
    sources, targets = zip(*PAIRS, strict=True)
    return train_pair(TokenizerSpec(vocabulary_size=60, joint=joint), sources * 3, targets * 3)


def write(folder: Path, name: str, pairs: list[tuple[str, str]], weight: float = 1) -> CorpusSpec:
    path = folder / name
    path.write_bytes("".join(f"{s}\t{t}\n" for s, t in pairs).encode())
    return CorpusSpec(file=str(path), weight=weight)


def check_content(encoded: EncodedPairs, pairs: list[tuple[str, str]]) -> None:
    assert len(encoded) == len(pairs)
    for i, (source, target) in enumerate(pairs):
        (source_ids,), (target_ids,) = (encoded.ids_of(s, np.array([i])) for s in SIDES)
        assert source_ids.tolist() == encoded.tokenizers.source.encode(source)
        assert target_ids.tolist() == encoded.tokenizers.target.encode(target)
        assert source_ids.dtype == np.int32
        assert encoded.source_lengths[i] == len(source_ids)
        assert encoded.target_lengths[i] == len(target_ids)
        assert encoded.text_of(i) == (source, target)
    order = np.arange(len(pairs)) * 7 % len(pairs)  # those of several corpora, in no order
    for side, name in enumerate(("source", "target")):
        tokenizer = getattr(encoded.tokenizers, name)
        found = encoded.ids_of(name, order)
        assert [ids.tolist() for ids in found] == [tokenizer.encode(pairs[i][side]) for i in order]
    assert encoded.ids_of("source", order[:0]) == []


def test_several_corpora_are_numbered_through(tmp_path: Path) -> None:
    many = [(f"dog {i}", f"hund {i}") for i in range(4100)]  # more than are encoded at once
    specs = [write(tmp_path, "a.tsv", PAIRS), write(tmp_path, "b.tsv", many)]
    encoded = encode_corpora(specs, tokenizers(), tmp_path / "cache")
    check_content(encoded, PAIRS + many)
    assert encoded.line_of(0) == f"{tmp_path / 'a.tsv'}:1"
    assert encoded.line_of(4) == f"{tmp_path / 'b.tsv'}:1"
    assert encoded.line_of(4103) == f"{tmp_path / 'b.tsv'}:4100"
    assert encoded.starts.tolist() == [0, 4, 4104]


def test_nothing_but_empty_lines_can_be_encoded(tmp_path: Path) -> None:
    spec = write(tmp_path, "a.tsv", [("", "")])
    for _ in range(2):
        check_content(encode_corpora([spec], tokenizers(), tmp_path / "cache"), [("", "")])


def test_the_second_time_comes_from_the_cache(tmp_path: Path) -> None:
    spec = write(tmp_path, "a.tsv", PAIRS)
    calls: list[tuple[int, int]] = []

    def encode(spec: CorpusSpec, joint: bool = False) -> EncodedPairs:
        calls.clear()
        return encode_corpora(
            [spec],
            tokenizers(joint),
            tmp_path / "cache",
            progress=lambda *c: calls.append(c),
            notice=pytest.fail,
        )

    first = encode(spec)
    size = (tmp_path / "a.tsv").stat().st_size
    assert calls == [(size, size)]
    again = encode(spec)
    assert not calls
    check_content(again, PAIRS)
    assert again.fingerprint == first.fingerprint
    moved = encode(write(tmp_path, "moved.tsv", PAIRS))
    assert not calls
    assert moved.line_of(1) == f"{tmp_path / 'moved.tsv'}:2"
    check_content(encode(write(tmp_path, "a.tsv", PAIRS[:2])), PAIRS[:2])
    assert calls
    other = encode(spec, joint=True)
    assert calls
    assert other.fingerprint != first.fingerprint
    assert len(list((tmp_path / "cache").iterdir())) == 3


def test_fingerprint_holds_the_weights(tmp_path: Path) -> None:
    prints = {
        encode_corpora(
            [write(tmp_path, "a.tsv", PAIRS, weight)], tokenizers(), tmp_path / "cache"
        ).fingerprint
        for weight in (1, 2, 0.5)
    }
    assert len(prints) == 3


def stored_files(cache_folder: Path) -> list[Path]:
    return sorted(path for path in cache_folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("damage", ["cut", "flip", "remove"])
def test_a_damaged_cache_is_made_anew_saying_so(tmp_path: Path, damage: str) -> None:
    spec = write(tmp_path, "a.tsv", PAIRS)
    cache_folder = tmp_path / "cache"
    encode_corpora([spec], tokenizers(), cache_folder)
    assert len(stored_files(cache_folder)) == 11
    for number in (0, 2, 5, 10):
        path = stored_files(cache_folder)[number]
        content = bytearray(path.read_bytes())
        if damage == "cut":
            path.write_bytes(content[:-1])
        elif damage == "flip":
            content[len(content) // 2] ^= 0x20
            path.write_bytes(content)
        else:
            path.unlink()
        notices: list[str] = []
        encoded = encode_corpora([spec], tokenizers(), cache_folder, notice=notices.append)
        check_content(encoded, PAIRS)
        if damage == "flip" and path.name == "header.json" and not notices:
            continue  # a flipped blank or letter case in JSON need not change what it says
        assert len(notices) == 1, path
        assert "damaged" in notices[0]
        assert str(path.parent) in notices[0]


def test_what_a_killed_run_left_is_not_used(tmp_path: Path) -> None:
    spec = write(tmp_path, "a.tsv", PAIRS)
    partial = tmp_path / "cache" / ".partial-x"
    partial.mkdir(parents=True)
    (partial / "source.ids").write_bytes(b"half")
    check_content(encode_corpora([spec], tokenizers(), tmp_path / "cache"), PAIRS)


@pytest.mark.parametrize(
    ("number", "message"), [(errno.ENOSPC, "disk is full"), (errno.EIO, "cannot be written")]
)
def test_a_full_disk_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, message: str
) -> None:
    def full(_: int) -> None:
        raise OSError(number, os.strerror(number))

    spec = write(tmp_path, "a.tsv", PAIRS)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(RunError, match=message) as caught:
            encode_corpora([spec], tokenizers(), tmp_path / "cache")
    assert "data.cache" in str(caught.value)
    assert not list((tmp_path / "cache").iterdir())
    check_content(encode_corpora([spec], tokenizers(), tmp_path / "cache"), PAIRS)


def test_a_cache_that_is_a_file_is_a_run_error(tmp_path: Path) -> None:
    spec = write(tmp_path, "a.tsv", PAIRS)
    (tmp_path / "cache").write_text("in the way")
    with pytest.raises(RunError, match="cannot be written"):
        encode_corpora([spec], tokenizers(), tmp_path / "cache")


def test_a_bad_line_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_bytes(b"a\tb\n" * 5000 + b"c\n")
    with pytest.raises(DataError, match="1 fields"):
        encode_corpora([CorpusSpec(file=str(path))], tokenizers(), tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_temperature_shows_small_corpora_more_often(tmp_path: Path) -> None:
    large = write(tmp_path, "large.tsv", [(f"dog {i}", "hund") for i in range(90)])
    small = write(tmp_path, "small.tsv", [(f"cat {i}", "katze") for i in range(10)])
    encoded = encode_corpora([large, small], tokenizers(), tmp_path / "cache")
    for temperature, expected in ((1, (90, 10)), (2, (75, 25)), (1e6, (50, 50))):
        data = DataSpec(train=(large, small), batch_tokens=64, temperature=temperature)
        batches = epoch_batches(encoded, select_pairs(encoded, data), data, seed=1, epoch=3)
        shown = np.concatenate(batches)
        assert (np.count_nonzero(shown < 90), np.count_nonzero(shown >= 90)) == expected
