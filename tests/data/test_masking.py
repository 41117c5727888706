"""Which tokens are hidden: shares, purity, whole words; rows that hold every piece once."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.data.batch_plan import plan_files, plan_once
from heedful.data.batches import NO_TARGET
from heedful.data.corpus_spec import CorpusSpec, DataSpec
from heedful.data.corruption import Masking, masked_batch
from heedful.data.encoded_texts import EncodedTexts, cut_texts, encode_texts, first_rows
from heedful.data.text_corpus import DocumentReader
from heedful.errors import ConfigError
from heedful.text.tokenizer import Tokenizer
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_tokenizer

TEXT = "some words that stand here\nand some more words there, on lines\n" * 20


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(TokenizerSpec(vocabulary_size=40), [TEXT]).for_encoder()


@pytest.fixture(scope="module")
def texts(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> EncodedTexts:
    folder = tmp_path_factory.mktemp("texts")
    readers = []
    for name, content in (("a", TEXT), ("b", "some words\n"), ("c", TEXT[:400])):
        (folder / name).write_text(content, encoding="utf-8")
        readers.append(DocumentReader(folder / name, "line"))
    readers.append(DocumentReader(folder / "a", "file"))
    return encode_texts(readers, tokenizer, folder / "cache")


def pieces_of(texts: EncodedTexts) -> list[int]:
    bounds = texts.bounds
    return [p for a, b in itertools.pairwise(bounds) for p in range(a + 1, b - 1)]


@settings(max_examples=40)
@given(max_length=st.integers(3, 200), seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 5))
def test_every_piece_is_in_one_row(
    texts: EncodedTexts, tokenizer: Tokenizer, max_length: int, seed: int, epoch: int
) -> None:
    rows = cut_texts(texts, tokenizer, max_length, seed=seed, epoch=epoch)
    held = [p for s, n in zip(rows.starts, rows.counts, strict=True) for p in range(s, s + n)]
    assert held == pieces_of(texts)
    assert rows.counts.min() >= 1
    assert rows.counts.max() <= max_length - 2
    files = tuple(CorpusSpec(file="a", weight=weight) for weight in (1, 1, 2, 1))
    data = DataSpec(train=files, batch_tokens=2 * max_length)
    planned = plan_files(rows.sizes, rows.bounds(texts), data, seed=seed, epoch=epoch)
    shown = np.bincount(np.concatenate(planned), minlength=len(rows))
    in_third = (rows.starts >= texts.starts[2]) & (rows.starts < texts.starts[3])
    assert np.array_equal(shown, np.where(in_third, 2, 1))
    assert all(len(b) * (rows.counts[b].max() + 2) <= 2 * max_length for b in planned)
    assert sorted(np.concatenate(plan_once(rows.sizes, data))) == list(range(len(rows)))


def test_cuts_differ_by_epoch_in_long_texts_only(texts: EncodedTexts, tokenizer: Tokenizer) -> None:
    first, second = (cut_texts(texts, tokenizer, 40, seed=1, epoch=e).starts for e in (0, 1))
    changed = set(first) ^ set(second)
    assert changed
    assert min(changed) >= texts.starts[3]


def test_the_begin_of_every_text_is_a_row(texts: EncodedTexts, tokenizer: Tokenizer) -> None:
    rows = first_rows(texts, tokenizer, 8)
    assert np.array_equal(rows.starts, texts.bounds[:-1] + 1)
    assert rows.counts.max() == 6
    with pytest.raises(ConfigError, match="no room"):
        first_rows(texts, tokenizer, 2)


@pytest.mark.parametrize("length", [7, 20, 126])
def test_shares_are_those_of_the_paper(tokenizer: Tokenizer, length: int) -> None:
    masking = Masking(tokenizer, 0.15, whole_words=False)
    pieces = np.resize(masking.ordinary, length)
    rows = 40_000 // length
    hidden = replaced = kept = 0
    drawn = np.zeros(tokenizer.size, np.int64)
    for start in range(rows):
        shown, chosen = masking(pieces, seed=3, epoch=1, start=start)
        assert np.array_equal(shown[~chosen], pieces[~chosen])
        assert chosen.sum() in (max(1, int(0.15 * length)), int(0.15 * length) + 1)
        here = shown[chosen]
        hidden += int((here == masking.mask).sum())
        replaced += int(((here != masking.mask) & (here != pieces[chosen])).sum())
        kept += int((here == pieces[chosen]).sum())
        drawn += np.bincount(here[here != pieces[chosen]], minlength=tokenizer.size)
    total = hidden + replaced + kept
    assert total / (rows * length) == pytest.approx(0.15, abs=0.003)
    assert hidden / total == pytest.approx(0.8, abs=0.02)
    # A random piece is now and then the piece itself.
    itself = 1 / len(masking.ordinary)
    assert replaced / total == pytest.approx(0.1 * (1 - itself), abs=0.015)
    assert drawn[masking.ordinary].min() > 0
    assert not drawn[[tokenizer.pad, tokenizer.bos, tokenizer.eos, tokenizer.unk]].any()


def test_all_places_are_chosen_alike(tokenizer: Tokenizer) -> None:
    masking = Masking(tokenizer, 0.15, whole_words=False)
    pieces = np.resize(masking.ordinary, 10)
    found = sum(masking(pieces, seed=1, epoch=0, start=s)[1].astype(int) for s in range(4000))
    assert found == pytest.approx(np.full(10, 600), abs=100)


@settings(max_examples=60)
@given(
    length=st.integers(1, 60),
    place=st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 99), st.integers(0, 2**40)),
    share=st.floats(0.01, 0.99),
    whole=st.booleans(),
)
def test_masks_are_a_function_of_the_place(
    tokenizer: Tokenizer, length: int, place: tuple[int, int, int], share: float, whole: bool
) -> None:
    seed, epoch, start = place
    pieces = np.resize(Masking(tokenizer, 0.5, whole_words=False).ordinary, length)
    given_ = pieces.copy()
    one, two = (
        Masking(tokenizer, share, whole_words=whole)(pieces, seed=seed, epoch=epoch, start=start)
        for _ in range(2)
    )
    assert np.array_equal(one[0], two[0])
    assert np.array_equal(one[1], two[1])
    assert np.array_equal(pieces, given_)
    assert one[1].any()


def test_epoch_seed_and_row_each_change_the_masks(tokenizer: Tokenizer) -> None:
    masking = Masking(tokenizer, 0.15, whole_words=False)
    pieces = np.resize(masking.ordinary, 100)
    places = [(1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1)]
    masks = {masking(pieces, seed=s, epoch=e, start=p)[1].tobytes() for s, e, p in places}
    assert len(masks) == 4


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe", "unigram", "characters"])
def test_whole_words_are_hidden_or_none(kind: str) -> None:
    spec = TokenizerSpec.parse({"kind": kind, "vocabulary_size": 300})
    tokenizer = train_tokenizer(spec, [TEXT]).for_encoder()
    text = "words stand here\nthere, that lines"
    pieces = np.array(tokenizer.encode(text))
    masking = Masking(tokenizer, 0.3, whole_words=True)
    found = [masking(pieces, seed=1, epoch=0, start=start)[1] for start in range(300)]
    parted = np.array([chosen[1:] != chosen[:-1] for chosen in found]).any(axis=0)
    shown = [tokenizer.token(int(piece)).replace("\u2581", "") for piece in pieces]
    words = [shown[0]]
    for piece, begins in zip(shown[1:], parted, strict=True):
        words = [*words, piece] if begins else [*words[:-1], words[-1] + piece]
    assert words == ["words", "stand", "here", "\n", "there,", "that", "lines"]


def test_the_share_of_tokens_holds_for_whole_words(tokenizer: Tokenizer) -> None:
    pieces = np.array(tokenizer.encode(TEXT[:400]))
    masking = Masking(tokenizer, 0.15, whole_words=True)
    chosen = [masking(pieces, seed=1, epoch=0, start=s)[1].mean() for s in range(1000)]
    assert np.mean(chosen) == pytest.approx(0.15, abs=0.005)


def test_a_batch_holds_rows_in_their_frame(texts: EncodedTexts, tokenizer: Tokenizer) -> None:
    masking = Masking(tokenizer, 0.15, whole_words=False)
    rows = cut_texts(texts, tokenizer, 16, seed=1, epoch=0)
    short, long = int(rows.counts.argmin()), int(rows.counts.argmax())
    batch = masked_batch(texts, rows.take([short, long]), masking, tokenizer, seed=1, epoch=0)
    again = masked_batch(texts, rows.take([long]), masking, tokenizer, seed=1, epoch=0)
    assert batch.ids[1].equal(again.ids[0])
    assert batch.targets[1].equal(again.targets[0])
    real = int(rows.counts[short]) + 2
    assert batch.positions[0].tolist() == [*range(real), *[-1] * (16 - real)]
    assert batch.ids[0, 0] == tokenizer.bos
    assert batch.ids[0, real - 1] == tokenizer.eos
    assert batch.target_tokens == int((batch.targets != NO_TARGET).sum())
    assert (batch.targets != NO_TARGET).sum(1)[1] in (2, 3)  # 15 % of 14
    start, count = int(rows.starts[long]), int(rows.counts[long])
    whole = np.where(batch.targets[1, 1:-1] >= 0, batch.targets[1, 1:-1], batch.ids[1, 1:-1])
    assert whole.tolist() == texts.span(start, start + count).tolist()
    assert not (batch.targets[:, 0] >= 0).any()


def test_a_tokenizer_without_a_mask_is_refused() -> None:
    plain = train_tokenizer(TokenizerSpec(vocabulary_size=40), [TEXT])
    with pytest.raises(ConfigError, match="no mask token"):
        Masking(plain, 0.15, whole_words=False)
