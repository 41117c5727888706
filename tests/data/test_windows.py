"""Windows of a stream of texts: every prediction once, none across texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from heedful.data.batches import WindowBatch
from heedful.data.encoded_texts import EncodedTexts, encode_texts, epoch_windows, make_windows
from heedful.data.text_corpus import DocumentReader
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_tokenizer


def stream(parts: list[list[int]]) -> EncodedTexts:
    """Texts of given lengths, whose tokens are numbered through from 100."""
    arrays, token = [], 100
    for lengths in parts:
        total = sum(lengths)
        arrays.append(
            {
                "ids": np.arange(token, token + total),
                "begins": np.cumsum([0, *lengths[:-1]]),
                "lines": np.arange(1, len(lengths) + 1),
            }
        )
        token += total
    readers = [DocumentReader(Path(f"{n}.txt"), "line") for n in range(len(parts))]
    return EncodedTexts(readers, arrays, ["key"] * len(parts))


LENGTHS = st.lists(st.lists(st.integers(2, 9), min_size=1, max_size=5), min_size=1, max_size=3)


def rows(batch: WindowBatch) -> list[tuple[list[int], ...]]:
    columns = (batch.ids, batch.positions, batch.segments, batch.targets)
    return list(zip(*(c.tolist() for c in columns), strict=True))


@given(parts=LENGTHS, length=st.integers(1, 12), epoch=st.integers(0, 5), seed=st.integers(0, 9))
def test_every_token_is_predicted_once_from_the_one_before_it(
    parts: list[list[int]], length: int, epoch: int, seed: int
) -> None:
    texts = stream(parts)
    starts = epoch_windows(len(texts), length, seed=seed, epoch=epoch)
    batch = make_windows(texts, starts, length)
    predicted = []
    for start, (ids, positions, _, targets) in zip(starts.tolist(), rows(batch), strict=True):
        assert ids[0] == 100  # the stream's first token, a begin token, opens every window
        for token, position, target in zip(
            [100 + start, *ids[1:]], positions, targets, strict=True
        ):
            if target >= 0:
                assert position >= 0
                assert target == token + 1
                predicted.append(target)
    flat = [n for lengths in parts for n in lengths]
    begins = set((100 + np.cumsum([0, *flat[:-1]])).tolist())
    first = 100 + int(starts.min())  # what the epoch's shift leaves out
    wanted = [t for t in range(first + 1, 100 + sum(flat)) if t not in begins]
    assert sorted(predicted) == wanted
    assert batch.target_tokens == len(wanted)
    if epoch == 0:
        assert first == 100


@given(parts=LENGTHS, length=st.integers(1, 12))
def test_positions_and_segments_begin_anew_with_each_text(
    parts: list[list[int]], length: int
) -> None:
    texts = stream(parts)
    flat = [n for lengths in parts for n in lengths]
    text_of = np.repeat(np.arange(len(flat)), flat)
    starts = epoch_windows(len(texts), length, seed=1, epoch=3)
    batch = make_windows(texts, starts, length)
    for start, (ids, positions, segments, _) in zip(starts.tolist(), rows(batch), strict=True):
        tokens = [100 + start, *ids[1:]]
        numbers = [
            int(text_of[i - 100]) if p >= 0 else -1 for i, p in zip(tokens, positions, strict=True)
        ]
        for place, number in enumerate(numbers):
            if number < 0:
                continue
            same = numbers[:place].count(number)
            assert positions[place] == same
            assert segments[place] == number - numbers[0]


def test_epochs_cut_differently_and_always_alike() -> None:
    plans = [epoch_windows(1000, 64, seed=1, epoch=epoch).tolist() for epoch in range(4)]
    assert plans == [epoch_windows(1000, 64, seed=1, epoch=epoch).tolist() for epoch in range(4)]
    assert len({min(plan) for plan in plans}) > 2
    assert plans[0] != sorted(plans[0])


def test_texts_are_framed_encoded_once_and_found_again(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(TokenizerSpec(kind="characters"), ["abc\n"])
    path = tmp_path / "a.txt"
    path.write_text("ab\n\ncab\n")
    readers = [DocumentReader(path, "line")]
    texts = encode_texts(readers, tokenizer, tmp_path / "cache")
    a, b, c = tokenizer.encode("abc")
    bos, eos = tokenizer.bos, tokenizer.eos
    assert texts.span(0, len(texts)).tolist() == [bos, a, b, eos, bos, c, a, b, eos]
    assert [texts.line_of(token) for token in (0, 3, 4)] == [f"{path}:{n}" for n in (1, 1, 3)]
    (folder,) = (tmp_path / "cache").iterdir()
    before = folder.stat().st_mtime_ns
    assert encode_texts(readers, tokenizer, tmp_path / "cache").fingerprint == texts.fingerprint
    assert folder.stat().st_mtime_ns == before
    damaged = bytearray((folder / "ids").read_bytes())
    damaged[0] ^= 1
    (folder / "ids").write_bytes(bytes(damaged))
    told: list[str] = []
    again = encode_texts(readers, tokenizer, tmp_path / "cache", told.append)
    assert again.span(0, 3).tolist() == [bos, a, b]
    assert "damaged" in told[0]
