"""Tagging as a task: sentences whose words have tags in, an encoder that tags words out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from heedful.data.framed import FramedBatch, FramedRow, FramedRows
from heedful.data.tagged import TaggedReader, TaggedSentence, tagged_reader
from heedful.decode.long_texts import parts_of, word_pieces
from heedful.errors import DataError
from heedful.models.family import TokenHeadSpec
from heedful.train.beginning import first_labels, tokenizers_for
from heedful.train.framed import FramedData, FramedTask, Judge, plural
from heedful.train.judging import tag_metrics, tag_scores
from heedful.train.masked import encoder_tokenizers
from heedful.train.objective import with_penalty
from heedful.train.task_settings import check_room, check_task_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heedful.decode.encoding import EncoderPipeline
    from heedful.events import Events
    from heedful.text.pair import TokenizerPair
    from heedful.text.protocol import TextTokenizer
    from heedful.train.settings import RunSettings

Sentences = list[TaggedSentence]


def prepare_tagger(
    settings: RunSettings, tokenizers: TokenizerPair | None, events: Events
) -> FramedTask:
    """Read, check and encode tagged sentences; arguments as `heedful.train.task.prepare_task`.

    Raises:
        DataError: when the sentences or tags cannot be used.
        ConfigError: when a batch has no room for a sentence, or a setting is for another task.
    """
    check_task_settings(settings)
    check_room(settings)
    data = settings.data
    readers = [tagged_reader(spec, data) for spec in data.train]
    train = [list(reader) for reader in readers]
    names = first_labels(settings, "token", _tag_names(train, readers))
    events.note(f"{plural(len(names), 'tag')}: {', '.join(names[:10])}{' …' * (len(names) > 10)}")
    valid_readers = [tagged_reader(spec, data) for spec in data.valid]
    valid = [list(reader) for reader in valid_readers]
    numbers = {name: number for number, name in enumerate(names)}
    for reader, sentences in zip(valid_readers, valid, strict=True):
        _check_known(reader, sentences, numbers)
    metrics = tag_metrics(settings.validation.metrics, names)
    tokenizers = tokenizers_for(
        settings,
        tokenizers,
        lambda: encoder_tokenizers(settings, [s.text for file in train for s in file]),
        events,
    )
    encoder = _Encoder(tokenizers.source, numbers, settings)

    def encoded(name: str, readers: list[TaggedReader], files: list[Sentences]) -> FramedRows:
        pairs = zip(readers, files, strict=True)
        rows = [
            [row for sentence in sentences for row in encoder.rows(sentence, reader)]
            for reader, sentences in pairs
        ]
        _tell(name, files, rows, events)
        return FramedRows(rows, tokenizers.source.pad)

    everything = [sentence for file in valid for sentence in file]

    def scores(pipeline: EncoderPipeline, count: int) -> dict[str, float]:
        budget = settings.data.budget
        return tag_scores(pipeline, everything[:count], metrics, batch_tokens=budget)

    rows = FramedData(
        encoded("training", readers, train),
        encoded("validation", valid_readers, valid) if valid else None,
        Judge(len(everything), scores) if valid else None,
    )
    head = TokenHeadSpec(labels=tuple(names), dropout=settings.model.dropout)
    return FramedTask(settings, tokenizers, head, word_scores, rows, events)


def word_scores(model: Any, batch: FramedBatch) -> tuple[Tensor, Tensor | float]:
    """Scores [T, labels] of words' first pieces, and what the model's layers add to the loss."""
    states, added = with_penalty(model, batch.ids, batch.positions, None)
    return model.token_logits(states[batch.rows, batch.places]), added


class _Encoder:
    """Makes rows of sentences: the first piece of a word has its tag, the others have none.

    Args:
        tokenizer: of the model.
        numbers: of the tags.
        settings: of the run: length of rows.
    """

    def __init__(
        self, tokenizer: TextTokenizer, numbers: dict[str, int], settings: RunSettings
    ) -> None:
        self.tokenizer = tokenizer
        self.numbers = numbers
        self.data = settings.data

    def rows(self, sentence: TaggedSentence, reader: TaggedReader) -> list[FramedRow]:
        """The windows of a sentence in which words begin; each word is the target of one."""
        ids, pieces = word_pieces(self.tokenizer, sentence.words)
        where = f"{reader.path}:{sentence.line}"
        parts = parts_of(
            self.tokenizer,
            ids,
            longest=self.data.max_length,
            where=where,
            stride=self.data.stride,
        )
        pairs = zip(pieces, sentence.tags, strict=True)
        targets = [(piece, self.numbers[tag]) for piece, tag in pairs if piece is not None]
        found = []
        for part in parts:
            low, high = part.window.own_start, part.window.own_end
            own = [(piece + part.shift, tag) for piece, tag in targets if low <= piece < high]
            if own:
                places, tags = zip(*own, strict=True)
                found.append(FramedRow(part.input.ids, part.input.second, places, tags, where))
        return found


def _tell(
    name: str, files: Sequence[Sentences], rows: Sequence[Sequence[FramedRow]], events: Events
) -> None:
    sentences = sum(map(len, files))
    words = sum(len(sentence.words) for file in files for sentence in file)
    found = [row for file in rows for row in file]
    events.note(
        f"{name}: {plural(sentences, 'sentence')}, {plural(words, 'word')}, "
        f"{plural(sum(len(row.ids) for row in found), 'token')}"
    )
    if len(found) > sentences:
        events.note(
            f"{name}: sentences longer than data.max_length are read in windows that overlap; "
            f"there are {len(found):,} in all"
        )
    lost = words - sum(len(row.targets) for row in found)
    if lost:
        events.warn(
            f"{name}: the tokenizer makes nothing of {plural(lost, 'word')}, which cannot be "
            "tagged and count as wrong"
        )


def _tag_names(files: Sequence[Sentences], readers: Sequence[TaggedReader]) -> list[str]:
    """The tags of the training data, sorted."""
    names = sorted({tag for file in files for sentence in file for tag in sentence.tags})
    if len(names) < 2:
        raise DataError(
            f"There is nothing to tell apart: the only tag is {names[0]!r}",
            where=", ".join(str(reader.path) for reader in readers),
            remedy="Give training data with at least two tags",
        )
    return names


def _check_known(reader: TaggedReader, sentences: Sentences, numbers: dict[str, int]) -> None:
    for sentence in sentences:
        for tag, line in zip(sentence.tags, sentence.lines, strict=True):
            if tag not in numbers:
                raise DataError(
                    f"No training word has the tag {tag!r}",
                    where=f"{reader.path}:{line}",
                    remedy="Mend the tag, leave the sentence out, or train on such words too",
                )
