"""Batches as tensors: what stands where, on either padding side, and with BPE-dropout."""

from __future__ import annotations

from copy import copy
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from heedful.data.batches import BpeDropout, PairBatch, make_batch
from heedful.data.corpus_spec import CorpusSpec, DataSpec
from heedful.data.encoded_pairs import EncodedPairs, encode_corpora, epoch_batches, select_pairs
from heedful.data.padding import pad, source_tensors
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_pair

PAIRS = [
    ("the dog", "der hund rennt schnell davon"),
    ("a cat sleeps on the table", "eine katze"),
    ("dogs", "hunde"),
]


@cache
def tokenizers() -> TokenizerPair:
    sources, targets = zip(*PAIRS, strict=True)
    return train_pair(TokenizerSpec(vocabulary_size=80, joint=False), sources * 3, targets * 3)


@pytest.fixture
def encoded(tmp_path: Path) -> EncodedPairs:
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{s}\t{t}\n" for s, t in PAIRS), encoding="utf-8")
    return encode_corpora([CorpusSpec(file=str(path))], tokenizers(), tmp_path / "cache")


def rows(tokens: torch.Tensor, positions: torch.Tensor) -> list[list[int]]:
    """The real tokens of every row, after checking that positions count up from 0."""
    assert tokens.dtype == positions.dtype == torch.int64
    found = []
    for row, places in zip(tokens.tolist(), positions.tolist(), strict=True):
        real = [(place, token) for place, token in zip(places, row, strict=True) if place != -1]
        assert [place for place, _ in real] == list(range(len(real)))
        found.append([token for _, token in real])
    return found


def test_what_stands_where(encoded: EncodedPairs) -> None:
    indices = np.array([2, 0, 1])
    batch = make_batch(encoded, indices)
    source, target = tokenizers().source, tokenizers().target
    assert batch.indices.tolist() == [2, 0, 1]
    expected = [PAIRS[i] for i in (2, 0, 1)]
    assert rows(batch.source, batch.source_positions) == [
        [*source.encode(s), source.eos] for s, _ in expected
    ]
    inputs = rows(batch.target_input, batch.target_positions)
    outputs = rows(batch.target_output, batch.target_positions)
    assert inputs == [[target.bos, *target.encode(t)] for _, t in expected]
    assert outputs == [[*target.encode(t), target.eos] for _, t in expected]
    assert batch.target_tokens == sum(map(len, outputs))
    assert int((batch.target_positions >= 0).sum()) == batch.target_tokens
    assert batch.source_positions[0, -1] == -1
    assert (batch.source[batch.source_positions < 0] == source.pad).all()
    assert (batch.target_input[batch.target_positions < 0] == target.pad).all()
    assert (batch.target_output[batch.target_positions < 0] == target.pad).all()


def test_sources_alone_are_those_of_training(encoded: EncodedPairs) -> None:
    batch = make_batch(encoded, np.array([0, 1, 2]))
    source = tokenizers().source
    tokens, positions = source_tensors([source.encode(s) for s, _ in PAIRS], source)
    assert torch.equal(tokens, batch.source)
    assert torch.equal(positions, batch.source_positions)


def test_empty_rows_and_no_rows() -> None:
    tokens, positions = pad([[], [5]], 0, last=2)
    assert tokens.tolist() == [[2, 0], [5, 2]]
    assert positions.tolist() == [[0, -1], [0, 1]]
    tokens, positions = pad([[], []], 0)
    assert tokens.shape == positions.shape == (2, 0)
    tokens, positions = pad([], 0, first=1)
    assert tokens.shape == positions.shape == (0, 0)


def test_moving_keeps_everything(encoded: EncodedPairs) -> None:
    batch = make_batch(encoded, np.array([0, 1]))
    moved = batch.to("meta")
    assert moved.source.device.type == "meta"
    assert moved.target_tokens == batch.target_tokens
    assert moved.source.shape == batch.source.shape


def dropped(encoded: EncodedPairs, indices: list[int], **changes: float) -> PairBatch:
    settings = {"probability": 0.5, "seed": 1, "epoch": 0, "max_length": 256, **changes}
    return make_batch(encoded, np.array(indices), bpe_dropout=BpeDropout(**settings))


def test_bpe_dropout_is_a_function_of_seed_epoch_and_pair(encoded: EncodedPairs) -> None:
    first = dropped(encoded, [0, 1, 2])
    again = dropped(encoded, [2, 1, 0])
    by_pair = rows(first.source, first.source_positions)
    assert rows(again.source, again.source_positions) == by_pair[::-1]
    others = [dropped(encoded, [0, 1, 2], **change) for change in ({"seed": 2}, {"epoch": 1})]
    for other in others:
        assert rows(other.source, other.source_positions) != by_pair
    source, target = tokenizers().source, tokenizers().target
    for pair, left, right in zip(
        PAIRS, by_pair, rows(first.target_output, first.target_positions), strict=True
    ):
        assert (source.decode(left), target.decode(right)) == pair
    plain = make_batch(encoded, np.array([0, 1, 2]))
    assert first.target_tokens > plain.target_tokens


def test_bpe_dropout_keeps_to_the_longest_length(encoded: EncodedPairs) -> None:
    longest = int(max(encoded.source_lengths.max(), encoded.target_lengths.max()))
    batch = dropped(encoded, [0, 1, 2], probability=1.0, max_length=longest)
    assert batch.source.shape[1] <= longest + 1
    assert batch.target_input.shape[1] <= longest + 1


def test_an_epoch_of_a_selection(encoded: EncodedPairs) -> None:
    corpus = encoded.corpora[0].spec
    longer = np.maximum(encoded.source_lengths, encoded.target_lengths)
    spec = DataSpec(train=(corpus,), max_length=int(longer.max()) - 1, batch_tokens=500)
    batches = epoch_batches(encoded, select_pairs(encoded, spec), spec, seed=1, epoch=0)
    short = np.flatnonzero(longer < longer.max()).tolist()
    assert 0 < len(short) < 3
    assert sorted(int(i) for batch in batches for i in batch) == short


def test_sources_stand_in_the_frame_of_their_tokenizer() -> None:
    source = copy(tokenizers().source)
    source.first, source.last = (7,), (8, source.eos)
    ids = [[10, 11, 12], [], [13]]
    expected = [[7, *row, 8, source.eos] for row in ids]
    assert rows(*source_tensors(ids, source)) == expected
    stored = [np.array(row, np.uint16) for row in ids]
    assert rows(*source_tensors(stored, source)) == expected
    tokens, positions = source_tensors([], source)
    assert tokens.shape == positions.shape == (0, 0)
