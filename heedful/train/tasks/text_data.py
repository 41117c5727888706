"""Files of text as the data of a task: encoded, reported, and cut into an encoder's rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from heedful.data.batch_plan import plan_epoch, plan_once
from heedful.data.encoded_texts import EncodedTexts, Rows, cut_texts, encode_texts
from heedful.data.text_corpus import DocumentReader, TextReader, document_reader
from heedful.text.text_tokenizer import TextTokenizer
from heedful.train.task import EpochBatches, FixedBatches, Setup, plural

if TYPE_CHECKING:
    from heedful.data.batch_plan import Indices
    from heedful.data.corpus_spec import CorpusSpec
    from heedful.train.run_settings import RunSettings
    from heedful.train.update import Batch

MakeRows = Callable[[EncodedTexts, Rows, int, int], "Batch"]
"""Makes a batch of rows: the stream, the rows, the seed of the run and the epoch."""


def document_readers(setup: Setup, corpora: Sequence[CorpusSpec]) -> list[DocumentReader]:
    """The readers of files of texts."""
    return [document_reader(corpus, setup.settings.data.documents) for corpus in corpora]


def all_texts(setup: Setup, readers: Sequence[TextReader]) -> list[str]:
    """The texts of files, to train a tokenizer on."""
    without = setup.long_words.without
    return [
        without(document.text, f"{reader.path}:{document.line}")
        for reader in readers
        for document in reader
    ]


def encode_documents(
    setup: Setup, training: Sequence[TextReader], tokenizer: TextTokenizer
) -> tuple[EncodedTexts, EncodedTexts | None]:
    """Encode the training texts, and the validation texts where the settings name some."""
    texts = encode_and_note(setup, "training", training, tokenizer)
    valid = document_readers(setup, setup.settings.data.valid)
    return texts, encode_and_note(setup, "validation", valid, tokenizer) if valid else None


def encode_and_note(
    setup: Setup, name: str, readers: Sequence[TextReader], tokenizer: TextTokenizer
) -> EncodedTexts:
    """Encode texts and tell how many they are.

    Args:
        setup: of the task.
        name: of the texts in the message.
        readers: the files.
        tokenizer: that encodes them.
    """
    texts = encode_texts(readers, tokenizer, setup.cache, notice=setup.events.warn)
    unknown = sum(int((ids == tokenizer.unk).sum()) for ids in texts.ids)
    setup.events.note(
        f"{name}: {plural(texts.texts, 'text')}, {len(texts):,} tokens, "
        f"{unknown / len(texts):.2%} of them unknown"
    )
    return texts


def weighted_fingerprint(texts: EncodedTexts, settings: RunSettings) -> str:
    """Changes when the training texts, the tokenizer or the weights of the files do."""
    weights = " ".join(str(corpus.weight) for corpus in settings.data.train)
    return hashlib.sha256(f"{texts.fingerprint} {weights}".encode()).hexdigest()


def row_source(
    texts: EncodedTexts,
    tokenizer: TextTokenizer,
    settings: RunSettings,
    sizes: Callable[[Rows], Indices],
    make: MakeRows,
) -> EpochBatches[Rows]:
    """Training batches of rows; long texts are cut elsewhere in each epoch.

    Args:
        texts: the stream.
        tokenizer: gives the frame.
        settings: row length, budget, seed, weights of the files.
        sizes: tokens of each row [N] that a batch must have room for.
        make: makes a batch.
    """
    data, seed = settings.data, settings.seed

    def plan(epoch: int) -> list[Rows]:
        rows = cut_texts(texts, tokenizer, data.max_length, seed=seed, epoch=epoch)
        batches = plan_epoch(sizes(rows), rows.bounds(texts), data, seed=seed, epoch=epoch)
        return [rows.take(indices) for indices in batches]

    return EpochBatches(plan, lambda rows, epoch: make(texts, rows, seed, epoch), texts.line_of)


def fixed_rows(
    texts: EncodedTexts | None,
    tokenizer: TextTokenizer,
    settings: RunSettings,
    sizes: Callable[[Rows], Indices],
    make: MakeRows,
) -> FixedBatches[Rows] | None:
    """All rows of the validation texts in batches; None without texts. Arguments: `row_source`.

    They do not depend on the run's seed, so that the losses of runs can be compared.
    """
    if texts is None:
        return None
    rows = cut_texts(texts, tokenizer, settings.data.max_length, seed=0, epoch=0)
    batches = [rows.take(indices) for indices in plan_once(sizes(rows), settings.data)]
    return FixedBatches(batches, lambda rows: make(texts, rows, 0, 0))
