"""Token sequences of any kind: a causal model of records whose fields share one vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from heedful.data.encoded_records import RecordRows
from heedful.data.field_inference import train_fields
from heedful.data.record_files import record_reader
from heedful.errors import ConfigError, ModelError
from heedful.models.shape_to_spec import causal_lm_spec
from heedful.text.field_tokenizer import FieldTokenizer
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.train.batch_source import EpochBatches, FixedBatches
from heedful.train.objective import CausalLMObjective
from heedful.train.task import Setup, Task
from heedful.train.tasks.encoder_task import encode_and_note, weighted_fingerprint


def prepare(setup: Setup) -> Task:
    """Read, check and encode records.

    Raises:
        DataError: when a record is unusable, with its place.
        ConfigError: when fields are wrong, or a batch has no room for a record.
        ModelError: when the initial model is one of texts.
    """
    settings, data = setup.settings, setup.settings.data
    if settings.model.memory is not None:
        raise ConfigError(
            "A sequence is read as a whole, so there is no earlier segment to remember",
            where="model.memory",
            remedy="Leave it out, and raise data.max_length for longer sequences",
        )
    training = [record_reader(corpus, settings.tokens) for corpus in data.train]

    def fields_of_data() -> TokenizerPair:
        warn = setup.events.warn
        tokenizer = train_fields(training, settings.tokens, settings.tokenizer, warn)
        return TokenizerPair(tokenizer, tokenizer)

    tokenizers = setup.tokenizers(fields_of_data)
    fields = _fields(setup, tokenizers)
    setup.events.note("Fields: " + ", ".join(field.write() for field in fields.fields))
    longest = data.max_length if fields.longest is None else fields.longest - 1

    def rows(name: str, readers: Sequence[Any]) -> RecordRows:
        made = RecordRows(
            encode_and_note(setup, name, readers, fields, "sequence"), fields, longest
        )
        made.check()
        return made

    records = rows("training", training)

    def new_model() -> nn.Module:
        axes = fields.axes(longest + 1)
        spec = causal_lm_spec(settings.model, fields.size, longest, axes)
        return setup.new_model(spec, tokenizers)

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
        CausalLMObjective(settings.objective.label_smoothing),
        validation,
    )


def _fields(setup: Setup, tokenizers: TokenizerPair) -> FieldTokenizer:
    """Return the fields of a run.

    Raises:
        ModelError: when the initial model is one of texts.
        ConfigError: when a batch has no room for a sequence.
    """
    fields, data = tokenizers.source, setup.settings.data
    if not isinstance(fields, FieldTokenizer):
        raise ModelError(
            "The initial model reads texts, and not the fields of token sequences",
            where=str(setup.settings.init),
            remedy="Start from a model of --task tokens, or leave --init out",
        )
    if fields.longest is not None and data.budget < fields.longest - 1:
        raise ConfigError(
            f"A batch of {data.budget} tokens has no room for a sequence of {fields.longest - 1}",
            where="data.batch_tokens",
            remedy=f"Raise it to {fields.longest - 1} or more",
        )
    return fields
