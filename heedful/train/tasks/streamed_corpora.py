"""Training corpora read as a stream of shards: texts for tokenizers, batches, and reports."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path

import torch
from babel import localedata

from heedful.data.batch_plan import Indices
from heedful.data.batches import PairBatch, WindowBatch
from heedful.data.corpus_check import refuse_unknown
from heedful.data.encoded_texts import EncodedTexts, make_windows
from heedful.data.pair_corpus import SIDES, CorpusTexts, Side
from heedful.data.shard_blocks import (
    BlockPlace,
    PairBlock,
    PairPlanner,
    PairsOfBlock,
    ShardStream,
    TextBlock,
    TextPlanner,
)
from heedful.data.text_file import LongWords, plain_name
from heedful.errors import ConfigError
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.train.streamed_batches import StreamedBatches
from heedful.train.task import Setup, plural
from heedful.train.tasks.pair_source import TERM_SAMPLE, TrainingTerms, batch_maker

_SAMPLED_SOURCES = 10_000
"""Number of sources that show whether a corpus has sentences or longer texts; they are read in a
second."""


@dataclass(frozen=True)
class SampledTexts:
    """The texts of a run's first examples, to train a tokenizer on; read again at each iteration.

    Each corpus has the same share as in training.

    Args:
        stream: stream of the examples.
        side: source or target side of pairs; None for texts.
        count: number of examples to read.
        long_words: filter of words that are too long to train a tokenizer on.
    """

    stream: ShardStream
    side: Side | None
    count: int
    long_words: LongWords

    def __iter__(self) -> Iterator[str]:
        for numbers in self.stream.sample(self.count):
            if self.side is None:
                texts = self.stream.texts(numbers)
            else:
                side = SIDES.index(self.side)
                texts = (pair[side] for pair in self.stream.pairs(numbers))
            for number, text in zip(numbers.tolist(), texts, strict=True):
                yield self.long_words.without(text, self.stream.line_of(number))


def pair_stream(setup: Setup) -> ShardStream:
    """Open the shards of sentence pairs that the settings name, and report their number.

    Raises:
        DataError: when the shards are unusable.
    """
    data = setup.settings.data
    return _noted(setup, ShardStream(data.train, "pairs", data, setup.settings.seed))


def text_stream(setup: Setup, *, has_memory: bool) -> ShardStream:
    """Open the shards of texts; see `pair_stream`.

    Raises:
        ConfigError: for a model with a memory.
    """
    data = setup.settings.data
    if has_memory:
        raise ConfigError(
            "A model with a memory reads texts one after the other, and shards are shuffled",
            where="data.train",
            remedy="Give the files that the shards were made from, or a model without a memory",
        )
    return _noted(setup, ShardStream(data.train, "texts", data, setup.settings.seed))


def _noted(setup: Setup, stream: ShardStream) -> ShardStream:
    for folder, sequence in zip(stream.folders, stream.order.sequences, strict=True):
        setup.events.note(
            f"train {folder.path}: {len(folder):,} {folder.index.kind} in "
            f"{plural(len(folder.index.shards), 'shard')}; {len(sequence) / len(stream.order):.2%} "
            "of an epoch"
        )
    return stream


def side_texts(
    setup: Setup, stream: ShardStream | None
) -> tuple[SampledTexts, SampledTexts] | tuple[CorpusTexts, CorpusTexts]:
    """Return sources and targets to train tokenizers on.

    Args:
        setup: setup with the corpora.
        stream: stream of shards; None where the corpora are files.
    """
    if stream is None:
        source, target = (
            CorpusTexts(setup.settings.data.train, side, setup.long_words) for side in SIDES
        )
        return source, target
    _note_sample(setup, stream)
    count = setup.settings.data.tokenizer_sample
    sources, targets = (SampledTexts(stream, side, count, setup.long_words) for side in SIDES)
    return sources, targets


def sampled_sources(setup: Setup, stream: ShardStream | None) -> tuple[Iterable[str], str]:
    """Return a sample of the sources of pairs, and the code of their language, "" if unknown.

    Args:
        setup: setup with the corpora.
        stream: stream of shards; None where the corpora are files.
    """
    specs = setup.settings.data.train
    if stream is not None:
        return SampledTexts(stream, "source", _SAMPLED_SOURCES, LongWords("characters")), ""
    texts = (CorpusTexts((spec,), "source", LongWords("characters")) for spec in specs)
    lines = (islice(each, -(-_SAMPLED_SOURCES // len(specs))) for each in texts)
    names = [plain_name(Path(spec.source)) for spec in specs if spec.source]
    given = {spec.languages[0] for spec in specs if spec.languages is not None}
    # As in train.de and news.en-de.de.gz.
    endings = given or {name.rpartition(".")[2] for name in names}
    language = endings.pop() if len(endings) == 1 else ""
    known = localedata.exists(language.replace("-", "_"))
    return chain.from_iterable(lines), language if known else ""


def target_texts(setup: Setup, stream: ShardStream | None) -> Iterable[str]:
    """Return the training targets; of streamed shards a sample, as tokenizers are trained on.

    Args:
        setup: setup with the corpora.
        stream: stream of shards; None where the corpora are files.
    """
    apart = LongWords("characters")  # long words are reported when the tokenizer is trained
    if stream is None:
        return CorpusTexts(setup.settings.data.train, "target", apart)
    return SampledTexts(stream, "target", setup.settings.data.tokenizer_sample, apart)


def sampled_texts(setup: Setup, stream: ShardStream) -> SampledTexts:
    """Return the texts to train a tokenizer on."""
    _note_sample(setup, stream)
    return SampledTexts(stream, None, setup.settings.data.tokenizer_sample, setup.long_words)


def _note_sample(setup: Setup, stream: ShardStream) -> None:
    count = setup.settings.data.tokenizer_sample
    if count < len(stream.order):
        of = f"{len(stream.order):,} {stream.folders[0].index.kind}"
        setup.events.note(f"The tokenizer is trained on {count:,} of {of} (data.tokenizer_sample)")


def stream_fingerprint(stream: ShardStream, tokenizers: TokenizerPair) -> str:
    """Hash the shards, their weights and the tokenizers."""
    return hashlib.sha256(f"{stream.fingerprint} {tokenizers.fingerprint}".encode()).hexdigest()


def streamed_pairs(
    setup: Setup, stream: ShardStream, tokenizers: TokenizerPair, terms: TrainingTerms | None
) -> StreamedBatches[PairBlock]:
    """Make training batches of sentence pairs, with soft terms in some sources."""
    data, make = setup.settings.data, batch_maker(setup, terms)
    if terms is not None:
        samples = (stream.pairs(numbers) for numbers in stream.sample(TERM_SAMPLE))
        setup.events.note(terms.describe(chain.from_iterable(samples), tokenizers))
    left_out: Counter[str] = Counter()
    first: dict[str, str] = {}  # origin of the first pair left out, by reason

    def open_block(place: BlockPlace, block: PairBlock) -> Callable[[Indices], PairBatch]:
        if place == (0, 0):
            # The first block stands for the corpus, which is never read as a whole before training.
            for side, share in zip(SIDES, block.unknown, strict=True):
                refuse_unknown(share, side, str(stream.folders[0].path))
            _note_first(setup, stream, block.batches, block.unknown, _packing(block, setup))
        for reason, (count, number) in block.left_out.items():
            left_out[reason] += count
            first.setdefault(reason, stream.line_of(number))
        # Twice an epoch: after the first block, for early mistakes, and at its end, for the total.
        if left_out and place.block in (0, stream.order.blocks - 1):
            so_far = ", ".join(
                f"{left_out[reason]:,} {reason} ({first[reason]} …)" for reason in first
            )
            setup.events.note(f"Pairs left out until now: {so_far}")
        pairs = PairsOfBlock(block, tokenizers)
        return lambda indices: make(pairs, indices, place.epoch)

    # Texts are sent to this process only where they are tokenised again, in BPE dropout and terms.
    keeps_texts = setup.settings.objective.bpe_dropout > 0 or terms is not None
    planner = PairPlanner(stream, tokenizers, data, keeps_texts=keeps_texts)
    blocks = stream.order.blocks
    return StreamedBatches(planner, blocks, open_block, stream.line_of, workers=data.workers)


def streamed_texts(
    setup: Setup, stream: ShardStream, tokenizers: TokenizerPair
) -> StreamedBatches[TextBlock]:
    """Make training batches of windows for a language model."""
    data = setup.settings.data
    length = data.max_length

    def open_block(place: BlockPlace, block: TextBlock) -> Callable[[Indices], WindowBatch]:
        if place == (0, 0):
            _note_first(setup, stream, block.batches, (block.unknown,))
        # A block's arrays in the form of encoded files, so that windows are cut by the same code.
        parts = {"ids": block.ids, "begins": block.begins, "lines": block.numbers}
        texts = EncodedTexts((), [parts], ())

        def make(starts: Indices) -> WindowBatch:
            # Numbers within the stream, not within the block: messages name lines by them.
            numbers = torch.from_numpy(block.numbers[texts.text_numbers(starts)])
            return replace(make_windows(texts, starts, length), indices=numbers)

        return make

    planner = TextPlanner(stream, tokenizers.source, length, data.budget // length)
    blocks = stream.order.blocks
    return StreamedBatches(planner, blocks, open_block, stream.line_of, workers=data.workers)


def _packing(block: PairBlock, setup: Setup) -> str:
    """Describe the shape and padding of packed batches, to follow their number in a sentence."""
    data = setup.settings.data
    if data.packed_length is None:
        return ""
    rows = data.batch_rows * len(block.batches)
    # Sources and targets both have `packed_length` positions a row.
    padding = 1 - block.real_positions / (2 * rows * data.packed_length)
    return (
        f" of {data.batch_rows:,} rows of {data.packed_length:,} positions, "
        f"{padding:.1%} of which are padding,"
    )


def _note_first(
    setup: Setup,
    stream: ShardStream,
    batches: list[Indices],
    unknown: tuple[float, ...],
    packing: str = "",
) -> None:
    blocks, kind = stream.order.blocks, stream.folders[0].index.kind
    setup.events.note(
        f"{plural(blocks, 'block')} an epoch of about {len(stream.order) / blocks:,.0f} {kind} "
        f"each; the first has {len(batches):,} batches{packing} and {max(unknown):.2%} unknown "
        "tokens"
    )
