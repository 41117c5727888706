"""Segments of streams: every prediction once, each segment goes on where the one before ended."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from heedful.data.encoded_texts import EncodedTexts
from heedful.data.text_corpus import DocumentReader
from heedful.data.text_streams import Streams, make_segments


def corpus(lengths: list[int]) -> EncodedTexts:
    """Texts of given lengths in one file, whose tokens are numbered through from 100."""
    total = sum(lengths)
    array = {
        "ids": np.arange(100, 100 + total),
        "begins": np.cumsum([0, *lengths[:-1]]),
        "lines": np.arange(1, len(lengths) + 1),
    }
    return EncodedTexts([DocumentReader(Path("texts.txt"), "line")], [array], ["key"])


@given(
    lengths=st.lists(st.integers(2, 9), min_size=1, max_size=6),
    length=st.integers(1, 7),
    rows=st.integers(1, 5),
    epoch=st.integers(0, 4),
    seed=st.integers(0, 9),
)
def test_streams_predict_every_token_once_and_go_on(
    lengths: list[int], length: int, rows: int, epoch: int, seed: int
) -> None:
    texts = corpus(lengths)
    streams = Streams.of_epoch(len(texts), length, rows, seed=seed, epoch=epoch)
    assert 1 <= len(streams.starts) <= rows
    text_of = np.repeat(np.arange(len(lengths)), lengths)
    predicted, following = [], streams.starts
    for number, segment in enumerate(streams.segments()):
        batch = make_segments(texts, segment)
        assert batch.begins == (number == 0)
        assert batch.indices.tolist() == following.tolist()
        following = following + length
        assert batch.target_tokens == int((batch.targets >= 0).sum())
        assert batch.target_tokens or length == 1
        columns = (batch.ids, batch.positions, batch.segments, batch.targets, batch.indices)
        for ids, places, numbers, targets, first in zip(
            *(each.tolist() for each in columns), strict=True
        ):
            for column, target in enumerate(targets):
                if places[column] < 0:
                    assert (numbers[column], target) == (-1, -1)
                    continue
                token = first + column
                assert places[column] == column
                assert numbers[column] == text_of[token]
                begin = number == 0 and column == 0
                assert ids[column] == (100 if begin else 100 + token)
                same = text_of[token + 1] == text_of[token]
                assert target == (101 + token if same else -1)
                predicted += [target] if same else []
    first = int(streams.starts[0])
    begins = set(np.cumsum([0, *lengths]).tolist())
    assert sorted(predicted) == [
        100 + token for token in range(first + 1, len(texts)) if token not in begins
    ]
