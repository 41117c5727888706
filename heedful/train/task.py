"""A training task as data: batches, an initial model, a loss and metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from heedful.data.text_file import LongWords, shards_not_read
from heedful.device import Precision
from heedful.engines.training.activation_checkpointing import apply_checkpointing
from heedful.errors import ConfigError, DataError
from heedful.events import Events
from heedful.models.model_spec import ModelSpec
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.train.batch_source import FixedBatches, Source
from heedful.train.objective import Objective
from heedful.train.run_settings import RunSettings
from heedful.train.validation import Measure, Validator
from heedful.train.warm_start import initial_labels, initial_model, initial_tokenizers

# Modules of `heedful.train.tasks` that prepare the tasks.
_MODULES = {
    "translation": "translation_task",
    "causal_lm": "language_model_task",
    "masked_lm": "corruption_task",
    "span_corruption": "corruption_task",
    "denoising": "corruption_task",
    "classify": "classification_task",
    "images": "image_task",
    "contrast": "contrast_task",
    "autoencode": "autoencoding_task",
    "tag": "tagging_task",
    "answer": "answering_task",
    "tokens": "token_task",
    "diffusion": "diffusion_task",
    "dpo": "preference_task",
    "reward": "preference_task",
    "grpo": "policy_task",
}


@dataclass(frozen=True)
class Task:
    """A task with its data read, checked and encoded.

    Args:
        tokenizers: tokenizers of the run; None for tasks without text.
        fingerprint: hash of the training data and the tokenizers.
        source: training batches.
        new_model: maker of the model with its initial weights, a function of the seed; raises
            `ConfigError` when the model is too small for the data.
        objective: loss of the task.
        validation: validation batches, or None.
        measure: metrics of the validation examples beside the loss, or None.
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
        """Make the validator of a run; None without validation data.

        Args:
            settings: settings of the training run.
            precision: number format of the forward passes.
            on_batch: callback after each validation batch.
        """
        if self.validation is None:
            return None
        return Validator(
            self.validation,
            self.objective,
            settings.validation,
            precision=precision,
            measure=self.measure,
            task=settings.base_task,
            on_batch=on_batch,
        )


@dataclass(frozen=True)
class Setup:
    """The run for which a task is prepared.

    Args:
        run_dir: directory of the run.
        settings: settings of the training run.
        saved_tokenizers: tokenizers of a resumed run; None for a new one.
        events: receivers of progress, and of warnings about doubtful data.

    Attributes:
        long_words: filter of words that are too long to train a tokenizer on.
    """

    run_dir: Path
    settings: RunSettings
    saved_tokenizers: TokenizerPair | None
    events: Events
    long_words: LongWords = field(init=False)

    def __post_init__(self) -> None:
        # The dataclass is frozen, and this attribute is no argument.
        object.__setattr__(self, "long_words", LongWords(self.settings.tokenizer.kind))

    @property
    def cache(self) -> Path:
        cache = self.settings.data.cache
        return Path(cache) if cache is not None else self.run_dir / "data"

    def tokenizers(self, train_new: Callable[[], TokenizerPair]) -> TokenizerPair:
        """Return the tokenizers of the resumed run, of the initial model, or newly trained ones.

        Args:
            train_new: function that trains tokenizers on the data.

        Raises:
            ModelError: when the initial model is damaged.
            ConfigError: when a setting contradicts the initial model, or needs one.
        """
        tokenizers = self.saved_tokenizers
        if tokenizers is None:
            tokenizers = initial_tokenizers(self.settings, self.events)
        if tokenizers is None:
            self.events.note("Training the tokenizer")
            tokenizers = train_new()
            # Known only now: words are counted while the tokenizer reads the corpus.
            if message := self.long_words.describe():
                self.events.warn(message)
        return tokenizers

    def new_model(self, spec: ModelSpec, tokenizers: TokenizerPair | None) -> nn.Module:
        """Make the model (see `initial_model`), with activation checkpointing as the settings say.

        Raises:
            ConfigError: when checkpointing is set and the model has no blocks.
        """
        model = initial_model(spec, self.settings, tokenizers, self.events)
        apply_checkpointing(model, self.settings.checkpointing)
        return model

    def labels(self, head: str, names: Sequence[str], kind: str = "label") -> tuple[str, ...]:
        """Return the labels of a head: the initial model's if they include all of the data's.

        Args:
            head: kind of head.
            names: labels of the training data.
            kind: noun for a label in the note about their number.
        """
        chosen = tuple(initial_labels(self.settings, head, names))
        note_labels(self.events, chosen, kind)
        return chosen


def prepare_task(
    run_dir: Path, settings: RunSettings, tokenizers: TokenizerPair | None, events: Events
) -> Task:
    """Read, check and encode the data of the task that the settings name.

    Args:
        run_dir: run directory, which keeps encoded data unless `data.cache` is set.
        settings: settings of the training run.
        tokenizers: tokenizers of a resumed run; None for a new run.
        events: receivers of progress, and of warnings about doubtful data.

    Raises:
        DataError: when the data is unusable.
        ConfigError: when a setting is for another task, or a batch has no room for an example.
    """
    # All contradictions of settings are found before any data is read.
    settings.check_for_task()
    check_forms(settings)
    check_packing(settings)
    # Imported here: a task loads readers and pipelines that the others do not need.
    preparing = settings.registered_task
    if preparing is None:
        preparing = import_module(f"heedful.train.tasks.{_MODULES[settings.task]}")
    task: Task = preparing.prepare(Setup(run_dir, settings, tokenizers, events))
    return task


def note_labels(events: Events, names: Sequence[str], kind: str = "label") -> None:
    """Report the number of labels and the first ten."""
    events.note(f"{plural(len(names), kind)}: {', '.join(names[:10])}{' …' * (len(names) > 10)}")


def plural(count: int, name: str) -> str:
    """Format a number with the noun that it counts."""
    return f"{count:,} {name}{'s' * (count != 1)}"


def check_several(names: Sequence[str], kind: str, nouns: str, where: str) -> None:
    """Refuse training data with fewer than two labels.

    Args:
        names: labels of the training data.
        kind: `label` or `tag`.
        nouns: noun for the examples, in the plural.
        where: names of the files.

    Raises:
        DataError: when there are fewer than two.
    """
    # A softmax over one class is always 1: the loss is 0 from the start and nothing is trained.
    if len(names) < 2:
        raise DataError(
            f"There is nothing to tell apart: the only {kind} is {names[0]!r}"
            if names
            else f"There are no {nouns}",
            where=where,
            remedy=f"Give training data with at least two {kind}s",
        )


_HEADER_EXAMPLES = 10  # below, one example a label says nothing


def counted_labels(events: Events, labelled: Iterable[tuple[str, str]], kind: str) -> list[str]:
    """Return the labels of training data, sorted; warn of those with a single example.

    Args:
        events: receivers of warnings.
        labelled: label and location, as "file:line", of every example.
        kind: `label` or `tag`.

    Raises:
        DataError: when the only example of a label stands in the first line, as a header does.
    """
    counts: Counter[str] = Counter()
    places: dict[str, str] = {}
    for label, place in labelled:
        counts[label] += 1
        places.setdefault(label, place)
    single = sorted(label for label, count in counts.items() if count == 1)
    if len(single) == 1 and places[single[0]].endswith(":1") and counts.total() > _HEADER_EXAMPLES:
        raise DataError(
            f"The first line looks like a header: no other has the {kind} {single[0]!r}",
            where=places[single[0]],
            remedy="Remove the line; if it is an example, add a second one of its kind",
        )
    if single:
        named = ", ".join(f"{label!r} ({places[label]})" for label in single[:5])
        events.warn(
            f"{plural(len(single), kind)} with a single example, from which nothing is learned: "
            f"{named}{' …' * (len(single) > 5)}"
        )
    return sorted(counts)


def check_forms(settings: RunSettings) -> None:
    """Refuse shards in tasks that read files only, and sampling temperatures for language models.

    Raises:
        DataError: when shards are given to a task that reads files only.
        ConfigError: when a sampling temperature is set for a language model.
    """
    data = settings.data
    if data.is_streamed and settings.base_task not in ("translation", "causal_lm"):
        raise shards_not_read(str(data.train[0].shards))
    # Windows of a language model cover the files' stream of tokens; there is nothing to sample.
    if data.temperature != 1 and settings.cuts_windows and not data.is_streamed:
        raise ConfigError(
            "A language model reads all of its files once an epoch, whatever their sizes",
            where=f"data.temperature = {data.temperature:g}",
            remedy="Leave it out, or make shards of the files: heedful data shard",
        )


def check_packing(settings: RunSettings) -> None:
    """Refuse settings that contradict packed pairs, and rows too short for a pair.

    Raises:
        ConfigError: when settings contradict each other or rows are too short; they are named.
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
    # `data.max_length` does not count the begin or end token of a side.
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
