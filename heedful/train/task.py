"""A training task as data: batches, a first model, a loss and metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.data.text_file import LongWords, shards_not_read
from heedful.engines.training.activation_checkpointing import apply_checkpointing
from heedful.errors import ConfigError, DataError
from heedful.train.batch_source import FixedBatches, Source
from heedful.train.validation import Measure, Validator
from heedful.train.warm_start import initial_labels, initial_model, initial_tokenizers

if TYPE_CHECKING:
    from torch import nn

    from heedful.device import Precision
    from heedful.events import Events
    from heedful.models.model_spec import ModelSpec
    from heedful.text.tokenizer_pair import TokenizerPair
    from heedful.train.objective import Objective
    from heedful.train.run_settings import RunSettings


@dataclass(frozen=True)
class Task:
    """A task whose data is read, checked and encoded.

    Args:
        tokenizers: trained from the data, or those of the run; None where the examples are no text.
        fingerprint: changes when the training data or the tokenizers do.
        source: the training batches.
        new_model: makes the model with its first weights, a function of the seed; raises
            `ConfigError` when the model cannot hold what the data needs.
        objective: the loss.
        validation: the validation batches, or None.
        measure: metrics beside the loss on the validation examples, or None.
    """

    tokenizers: TokenizerPair | None
    fingerprint: str
    source: Source
    new_model: Callable[[], nn.Module]
    objective: Objective
    validation: FixedBatches[Any] | None
    measure: Measure | None = None

    def validator(
        self,
        settings: RunSettings,
        precision: Precision,
        on_batch: Callable[[], None] = lambda: None,
    ) -> Validator | None:
        """The validator of a run; None without validation data.

        Args:
            settings: of the run.
            precision: of the forward passes.
            on_batch: called after each batch that is validated.
        """
        if self.validation is None:
            return None
        return Validator(
            self.validation,
            self.objective,
            settings.validation,
            precision=precision,
            measure=self.measure,
            on_batch=on_batch,
        )


@dataclass(frozen=True)
class Setup:
    """The run that a task is prepared for.

    Args:
        run_dir: the directory of the run.
        settings: of the run.
        saved_tokenizers: those of the run when it is resumed.
        events: receive progress, and warnings about doubtful data.

    Attributes:
        long_words: takes out words that a tokenizer cannot be trained on.
    """

    run_dir: Path
    settings: RunSettings
    saved_tokenizers: TokenizerPair | None
    events: Events
    long_words: LongWords = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "long_words", LongWords(self.settings.tokenizer.kind))

    @property
    def cache(self) -> Path:
        cache = self.settings.data.cache
        return Path(cache) if cache is not None else self.run_dir / "data"

    def tokenizers(self, train_new: Callable[[], TokenizerPair]) -> TokenizerPair:
        """The tokenizers of the run, of the model that training starts from, or new ones.

        Args:
            train_new: trains new ones on the data.

        Raises:
            ModelError: when the initial model is damaged.
            ConfigError: when a setting contradicts it, or needs one.
        """
        tokenizers = self.saved_tokenizers
        if tokenizers is None:
            tokenizers = initial_tokenizers(self.settings, self.events)
        if tokenizers is None:
            self.events.note("Training the tokenizer")
            tokenizers = train_new()
            if message := self.long_words.describe():
                self.events.warn(message)
        return tokenizers

    def new_model(self, spec: ModelSpec, tokenizers: TokenizerPair | None) -> nn.Module:
        """The model with its first weights, see `initial_model`; its blocks forget as settings say.

        Raises:
            ConfigError: when it has no blocks, and they are to forget.
        """
        model = initial_model(spec, self.settings, tokenizers, self.events)
        apply_checkpointing(model, self.settings.checkpointing)
        return model

    def labels(self, head: str, names: Sequence[str], kind: str = "label") -> tuple[str, ...]:
        """The labels of a head: those of the initial model where they hold all of the data's.

        Args:
            head: kind of the head.
            names: of the training data.
            kind: what to call them in the note of how many there are.
        """
        chosen = tuple(initial_labels(self.settings, head, names))
        note_labels(self.events, chosen, kind)
        return chosen


def note_labels(events: Events, names: Sequence[str], kind: str = "label") -> None:
    """Tell how many labels there are, and the first of them."""
    events.note(f"{plural(len(names), kind)}: {', '.join(names[:10])}{' …' * (len(names) > 10)}")


def plural(count: int, name: str) -> str:
    """A number and the noun it counts."""
    return f"{count:,} {name}{'s' * (count != 1)}"


def check_several(names: Sequence[str], kind: str, nouns: str, where: str) -> None:
    """Refuse training data with one label only.

    Args:
        names: of the labels.
        kind: `label` or `tag`.
        nouns: the examples, in the plural.
        where: the files.

    Raises:
        DataError: when there are less than two.
    """
    if len(names) < 2:
        raise DataError(
            f"There is nothing to tell apart: the only {kind} is {names[0]!r}"
            if names
            else f"There are no {nouns}",
            where=where,
            remedy=f"Give training data with at least two {kind}s",
        )


def check_forms(settings: RunSettings) -> None:
    """Refuse shards in tasks that read files only, and what files cannot do.

    Raises:
        DataError: naming the shards.
        ConfigError: naming the setting.
    """
    data = settings.data
    if data.is_streamed and settings.task not in ("translation", "causal_lm"):
        raise shards_not_read(str(data.train[0].shards))
    if data.temperature != 1 and settings.task == "causal_lm" and not data.is_streamed:
        raise ConfigError(
            "A language model reads all of its files once an epoch, whatever their sizes",
            where=f"data.temperature = {data.temperature:g}",
            remedy="Leave it out, or make shards of the files: heedful data shard",
        )


def check_packing(settings: RunSettings) -> None:
    """Refuse packed pairs with what changes their lengths, and rows that hold no pair.

    Raises:
        ConfigError: naming the settings.
    """
    data, row_length = settings.data, settings.data.packed_length
    if row_length is None:
        return
    lengthening = {
        "objective.bpe_dropout": settings.objective.bpe_dropout,
        "soft_terms": settings.soft_terms,
    }
    for name, is_set in lengthening.items():
        if is_set:
            raise ConfigError(
                f"{name} makes texts longer in each epoch, past the rows they are packed into",
                where=f"{name} and data.packed_length",
                remedy="Leave out one of them",
            )
    if settings.parallel.context > 1:
        raise ConfigError(
            "Rows of packed pairs are not divided along their length",
            where="parallel.context and data.packed_length",
            remedy="Set parallel.context = 1, or leave out data.packed_length",
        )
    longest = data.max_length + 1
    if row_length < longest:
        raise ConfigError(
            f"Rows of {row_length} positions have no room for a pair of data.max_length = "
            f"{data.max_length} tokens and its end",
            where="data.packed_length",
            remedy=f"Raise it to {longest} or more, or lower data.max_length",
        )
    if data.budget < row_length:
        raise ConfigError(
            f"A batch of {data.budget} positions has no room for a row of {row_length}",
            where="data.packed_length",
            remedy="Raise data.batch_tokens, or lower data.packed_length and data.max_length",
        )
