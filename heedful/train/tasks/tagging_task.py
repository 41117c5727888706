"""Tagging: an encoder that predicts a tag for each word of a sentence."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from heedful.data.batches import FramedBatch
from heedful.data.encoded_texts import FramedRow, FramedRows
from heedful.data.text_corpus import TaggedReader, TaggedSentence, tagged_reader
from heedful.errors import DataError
from heedful.models.encoder_spec import TokenHeadSpec
from heedful.pipelines.encoder_input import check_pairs, parts_of, word_tokens
from heedful.text.tokenizer import TextTokenizer
from heedful.train.objective import PenaltyCapture
from heedful.train.task import Setup, Task, check_several, counted_labels, plural
from heedful.train.tasks.encoder_task import (
    encoder_tokenizers,
    framed_task,
)
from heedful.train.tasks.pipeline_scores import pipeline_measure, tag_metrics, tag_scores
from heedful.train.warm_start import exact_text

Sentences = list[TaggedSentence]


def prepare(setup: Setup) -> Task:
    """Read, check and encode tagged sentences.

    Raises:
        DataError: when sentences or tags are unusable.
    """
    settings, data = setup.settings, setup.settings.data
    readers = [tagged_reader(spec, data) for spec in data.train]
    files = [list(reader) for reader in readers]
    tagged = (
        (tag, f"{reader.path}:{line}")
        for reader, file in zip(readers, files, strict=True)
        for sentence in file
        for tag, line in zip(sentence.tags, sentence.lines, strict=True)
    )
    tags = counted_labels(setup.events, tagged, "tag")
    check_several(tags, "tag", "sentences", ", ".join(str(reader.path) for reader in readers))
    # An initial model that knows all tags keeps their order, and so its classifier.
    names = setup.labels("token", tags, "tag")
    numbers = {name: number for number, name in enumerate(names)}
    valid_readers = [tagged_reader(spec, data) for spec in data.valid]
    valid_files = [list(reader) for reader in valid_readers]
    for reader, sentences in zip(valid_readers, valid_files, strict=True):
        _check_known(reader, sentences, numbers)
    # Checked before tokenizers are trained, which may take minutes.
    metrics = tag_metrics(settings.validation.metrics, names)
    tokenizers = setup.tokenizers(lambda: encoder_tokenizers(setup, _texts(setup, readers, files)))
    exact = exact_text(settings)
    rows_of = functools.partial(_rows, setup, tokenizers.source, numbers, exact)

    def encode(name: str, readers: list[TaggedReader], files: list[Sentences]) -> FramedRows:
        rows = [
            [row for sentence in file for row in rows_of(sentence, reader)]
            for reader, file in zip(readers, files, strict=True)
        ]
        _note(setup, name, files, rows)
        return FramedRows(rows, tokenizers.source.pad)

    sentences = [sentence for file in valid_files for sentence in file]
    measure = None
    if valid_files:
        measure = pipeline_measure(sentences, tag_scores, metrics, tokenizers, data.budget)
    return framed_task(
        setup,
        tokenizers,
        TokenHeadSpec(labels=names, dropout=settings.model.dropout),
        word_scores,
        encode("training", readers, files),
        encode("validation", valid_readers, valid_files) if valid_files else None,
        measure,
    )


def _texts(setup: Setup, readers: Sequence[TaggedReader], files: Sequence[Sentences]) -> list[str]:
    return [
        setup.long_words.without(sentence.text, f"{reader.path}:{sentence.line}")
        for reader, file in zip(readers, files, strict=True)
        for sentence in file
    ]


def word_scores(model: Any, batch: FramedBatch, capture: PenaltyCapture) -> Tensor:
    """Return scores [T, labels] of words' first tokens."""
    states = model(batch.ids, batch.positions, None, capture=capture)
    scores: Tensor = model.token_logits(states[batch.rows, batch.places])
    return scores


def _rows(
    setup: Setup,
    tokenizer: TextTokenizer,
    numbers: dict[str, int],
    exact: int | None,
    sentence: TaggedSentence,
    reader: TaggedReader,
) -> list[FramedRow]:
    """Return a sentence's windows; every word is the target of exactly one of them.

    The first token of a word has its tag, the others have none (Devlin 2019, section 5.3).
    """
    data = setup.settings.data
    ids, first_tokens = word_tokens(tokenizer, sentence.words)
    where = f"{reader.path}:{sentence.line}"
    check_pairs(exact, len(ids), where)
    parts = parts_of(tokenizer, ids, longest=data.max_length, where=where, stride=data.stride)
    pairs = zip(first_tokens, sentence.tags, strict=True)
    targets = [(token, numbers[tag]) for token, tag in pairs if token is not None]
    rows = []
    for part in parts:
        # Windows overlap; each predicts the words for which it has the most context on both sides.
        low, high = part.window.own_start, part.window.own_end
        # The shift moves token numbers of the sentence to places in the framed window.
        own = [(token + part.shift, tag) for token, tag in targets if low <= token < high]
        if own:
            places, tags = zip(*own, strict=True)
            rows.append(FramedRow(part.input.ids, part.input.second, places, tags, where))
    return rows


def _note(
    setup: Setup, name: str, files: Sequence[Sentences], rows: Sequence[Sequence[FramedRow]]
) -> None:
    sentences = sum(map(len, files))
    words = sum(len(sentence.words) for file in files for sentence in file)
    every = [row for file in rows for row in file]
    setup.events.note(
        f"{name}: {plural(sentences, 'sentence')}, {plural(words, 'word')}, "
        f"{plural(sum(len(row.ids) for row in every), 'token')}"
    )
    if len(every) > sentences:
        setup.events.note(
            f"{name}: sentences longer than data.max_length are read in windows that overlap; "
            f"there are {len(every):,} in all"
        )
    # Words without any token (`word_tokens` gives None) are the target of no row.
    lost = words - sum(len(row.targets) for row in every)
    if lost:
        setup.events.warn(
            f"{name}: the tokenizer makes nothing of {plural(lost, 'word')}, which cannot be "
            "tagged and count as wrong"
        )


def _check_known(reader: TaggedReader, sentences: Sentences, numbers: dict[str, int]) -> None:
    for sentence in sentences:
        for tag, line in zip(sentence.tags, sentence.lines, strict=True):
            if tag not in numbers:
                raise DataError(
                    f"No training word has the tag {tag!r}",
                    where=f"{reader.path}:{line}",
                    remedy="Mend the tag, leave the sentence out, or train on such words too",
                )
