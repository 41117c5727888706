"""Token sequences of any kind: a model of records, with an encoder if it reads some fields.

Without an encoder a causal model reads and writes all fields in one vocabulary. With one, the
fields that it reads have a vocabulary of their own, and a decoder writes the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from heedful.data.encoded_records import RecordPairs, RecordRows
from heedful.data.field_inference import train_sides
from heedful.data.record_files import record_reader
from heedful.errors import ConfigError, ModelError
from heedful.models.encoder_spec import CTCHeadSpec
from heedful.models.shape_to_spec import causal_lm_spec, encoder_spec, translator_spec
from heedful.text.field_tokenizer import FieldTokenizer
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.train.batch_source import EpochBatches, FixedBatches
from heedful.train.objective import (
    CausalLMObjective,
    CTCObjective,
    Objective,
    TranslationObjective,
)
from heedful.train.task import Setup, Task
from heedful.train.tasks.encoder_task import encode_and_note, weighted_fingerprint


def prepare(setup: Setup) -> Task:
    """Read, check and encode records.

    Raises:
        DataError: when a record is unusable, with its place.
        ConfigError: when fields are wrong, or a batch has no room for a record.
        ModelError: when the initial model is one of texts, or reads other fields by its encoder.
    """
    settings, data = setup.settings, setup.settings.data
    if settings.model.memory is not None:
        raise ConfigError(
            "A sequence is read as a whole, so there is no earlier segment to remember",
            where="model.memory",
            remedy="Leave it out, and raise data.max_length for longer sequences",
        )
    training = [record_reader(corpus, settings.tokens) for corpus in data.train]

    def sides_of_data() -> TokenizerPair:
        return train_sides(training, settings.tokens, settings.tokenizer, setup.events.warn)

    tokenizers = setup.tokenizers(sides_of_data)
    read, written = _sides(setup, tokenizers)
    longest = max(
        data.max_length if side.longest is None else side.longest - 1 for side in (read, written)
    )

    def rows(name: str, readers: Sequence[Any]) -> RecordRows:
        texts = encode_and_note(setup, name, readers, written, "sequence")
        made = RecordRows(texts, written, longest)
        if not tokenizers.joint:
            source = encode_and_note(setup, f"{name} source", readers, read, "sequence")
            made = RecordPairs(texts, written, longest, source, read)
        made.check()
        if settings.tokens.writer == "ctc":
            assert isinstance(made, RecordPairs)
            made.check_alignments(read.row_size if settings.tokens.rows else 1)
        return made

    records = rows("training", training)

    def new_model() -> nn.Module:
        return setup.new_model(_spec(setup, read, written, longest), tokenizers)

    validation = None
    if data.valid:
        held_out = rows("validation", [record_reader(each, settings.tokens) for each in data.valid])
        validation = FixedBatches(held_out.once(data), held_out.batch)
    return Task(
        tokenizers,
        weighted_fingerprint(setup, records.texts),
        EpochBatches(
            lambda epoch: records.plan(data, seed=settings.seed, epoch=epoch),
            lambda numbers, _: records.batch(numbers),
            records.line_of,
        ),
        new_model,
        _objective(setup, tokenizers),
        validation,
    )


def _objective(setup: Setup, tokenizers: TokenizerPair) -> Objective:
    """Return the loss of a model of all fields, of a decoder that answers, or of CTC."""
    settings = setup.settings
    if tokenizers.joint:
        return CausalLMObjective(settings.objective.label_smoothing)
    if settings.tokens.writer == "decoder":
        return TranslationObjective(settings.objective)
    return CTCObjective()


def _spec(setup: Setup, read: FieldTokenizer, written: FieldTokenizer, longest: int) -> Any:
    """Return the spec of a new model.

    Args:
        setup: setup of the task.
        read: fields that an encoder reads; the same object as `written` without an encoder.
        written: fields of the decoder.
        longest: most tokens of a side, its begin or end token counted.
    """
    shape = setup.settings.model
    row_size = read.row_size if setup.settings.tokens.rows else None
    if read is written:
        return causal_lm_spec(shape, written.size, longest, written.axes(longest + 1))
    # The vocabularies of both sides have nothing in common, so neither have their tables.
    sharing = "none" if shape.share_embeddings == "none" else "target"
    shape = shape.model_copy(update={"max_length": longest, "share_embeddings": sharing})
    if setup.settings.tokens.writer == "ctc":
        head = CTCHeadSpec(vocabulary=written.size)
        made: Any = encoder_spec(shape, read.size, longest, (head,), row_size)
    else:
        made = translator_spec(shape, read.size, written.size, row_size)
    return made


def _sides(setup: Setup, tokenizers: TokenizerPair) -> tuple[FieldTokenizer, FieldTokenizer]:
    """Return the fields that are read and those that are written; the same object if all are both.

    Raises:
        ModelError: when the initial model is one of texts, or reads other fields by its encoder.
        ConfigError: when a batch has no room for a sequence.
    """
    read, written = tokenizers.source, tokenizers.target
    settings, where = setup.settings, str(setup.settings.init)
    if not isinstance(read, FieldTokenizer) or not isinstance(written, FieldTokenizer):
        raise ModelError(
            "The initial model reads texts, and not the fields of token sequences",
            where=where,
            remedy="Start from a model of --task tokens, or leave --init out",
        )
    names = [] if tokenizers.joint else [field.name for field in read.fields]
    if set(names) != set(settings.tokens.source):
        raise ModelError(
            f"The encoder of the initial model reads {', '.join(names) or 'no fields'}",
            where=where,
            remedy=f"Set --tokens.source {' '.join(names)}" if names else "Leave tokens.source out",
        )
    _check_writer(setup, read, written)
    fields = dict.fromkeys((*read.fields, *written.fields))
    setup.events.note("Fields: " + ", ".join(field.write() for field in fields))
    if names:
        setup.events.note(f"The encoder reads {', '.join(names)}")
    for side in (read, written):
        if side.longest is not None and settings.data.budget < side.longest - 1:
            raise ConfigError(
                f"A batch of {settings.data.budget} tokens has no room for a sequence of "
                f"{side.longest - 1}",
                where="data.batch_tokens",
                remedy=f"Raise it to {side.longest - 1} or more",
            )
    return read, written


def _check_writer(setup: Setup, read: FieldTokenizer, written: FieldTokenizer) -> None:
    """Refuse rows and CTC where the fields do not allow them.

    Raises:
        ConfigError: when no encoder reads anything, an encoder of rows reads other fields than one
            of numbers, or CTC has not one field of any length to write, or labels to smooth.
    """
    tokens = setup.settings.tokens
    if read is written and (tokens.rows or tokens.writer == "ctc"):
        raise ConfigError(
            "Without an encoder nothing is read in rows, or answered by ctc",
            where="tokens.rows" if tokens.rows else "tokens.writer",
            remedy="Name the fields that an encoder reads by --tokens.source",
        )
    if tokens.rows and [field.content for field in read.fields] != ["numbers"]:
        raise ConfigError(
            "Rows are those of one field of numbers, and the encoder reads "
            + ", ".join(field.write() for field in read.fields),
            where="tokens.rows",
            remedy="Name such a field by --tokens.source, or leave rows out",
        )
    if tokens.writer == "decoder":
        return
    if len(written.fields) > 1 or written.fields[0].count is not None:
        raise ConfigError(
            "CTC writes one field of any length, and the fields that are not read are "
            + ", ".join(field.write() for field in written.fields),
            where="tokens.fields",
            remedy="Leave others out, and give the shape 'any'",
        )
    if setup.settings.objective.label_smoothing:
        raise ConfigError(
            "The loss of CTC is a sum over alignments, whose labels are not smoothed",
            where="objective.label_smoothing",
            remedy="Set it to 0",
        )
