"""Language modelling as a task: text in, a model of the next token out."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from heedful.data.documents import TextReader, document_reader
from heedful.data.stream import EncodedTexts, encode_texts
from heedful.data.windows import (
    NO_TARGET,
    WindowBatch,
    epoch_windows,
    make_windows,
    window_starts,
)
from heedful.models.family import CausalLMSpec
from heedful.models.shapes import causal_lm_spec
from heedful.nn.losses import smoothed_cross_entropy
from heedful.text.pair import TokenizerPair
from heedful.text.trainer import train_tokenizer
from heedful.train.beginning import first_model, tokenizers_for
from heedful.train.objective import Context, LossSum, with_penalty
from heedful.train.task_settings import check_room, check_task_settings
from heedful.train.validation import Validator

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    import numpy.typing as npt

    from heedful.device import Precision
    from heedful.events import Events
    from heedful.train.objective import Objective
    from heedful.train.settings import RunSettings


class LanguageModelTask:
    """Texts, read and encoded.

    Args:
        settings: of the run.
        tokenizers: the same one twice.
        texts: to train on.
        valid: to validate on, or None.
    """

    def __init__(
        self,
        settings: RunSettings,
        tokenizers: TokenizerPair,
        texts: EncodedTexts,
        valid: EncodedTexts | None,
    ) -> None:
        self.settings = settings
        self.tokenizers = tokenizers
        self.valid = valid
        self.fingerprint = texts.fingerprint
        self.source = WindowSource(texts, settings)

    def new_model(self) -> nn.Module:
        """The model with its first weights, a function of the seed."""
        return first_model(self._spec(), self.settings, self.tokenizers)

    def objective(self) -> CausalLMObjective:
        """Cross-entropy of the next token."""
        return CausalLMObjective(self.settings.objective.label_smoothing)

    def validator(
        self, objective: Objective, precision: Precision, events: Events
    ) -> Validator | None:
        """The loss on the validation texts, window by window."""
        if self.valid is None:
            return None
        settings = self.settings
        batches = ValidationWindows(self.valid, settings.data.max_length, _rows(settings))
        return Validator(batches, objective, settings.validation, precision=precision)

    def _spec(self) -> CausalLMSpec:
        size = self.tokenizers.source.size
        return causal_lm_spec(self.settings.model, size, self.settings.data.max_length)


class CausalLMObjective:
    """Cross-entropy of the next token.

    Args:
        label_smoothing: in training.
    """

    def __init__(self, label_smoothing: float) -> None:
        self.label_smoothing = label_smoothing

    def loss(self, model: Any, batch: WindowBatch, context: Context) -> LossSum:
        """The summed loss over the batch's targets."""
        # Where no text ends in a window there is no need to tell texts apart.
        segments = batch.segments if bool(batch.segments.any()) else None
        states, added = with_penalty(model, batch.ids, batch.positions, segments)
        targets = batch.targets
        if batch.target_tokens < targets.numel():  # or choosing would only copy
            wanted = targets != NO_TARGET
            states, targets = states[wanted], targets[wanted]
        loss, nll = smoothed_cross_entropy(
            states.flatten(end_dim=-2),
            model.output_weight,
            targets.flatten(),
            self.label_smoothing if model.training else 0.0,
            model.output_bias,
        )
        tokens = batch.target_tokens
        return LossSum(loss + tokens * added, tokens, {"nll": nll})


class WindowSource:
    """Batches of windows; which ones is a function of the seed, the epoch and the place.

    Args:
        texts: the stream.
        settings: of the run: window length, budget, seed.
    """

    def __init__(self, texts: EncodedTexts, settings: RunSettings) -> None:
        self.texts = texts
        self.settings = settings
        self._epoch: tuple[int, npt.NDArray[np.int64]] | None = None

    def count(self, epoch: int) -> int:
        """Batches of an epoch."""
        return math.ceil(len(self._starts(epoch)) / _rows(self.settings))

    def batch(self, epoch: int, number: int) -> WindowBatch:
        """One batch of an epoch."""
        rows = _rows(self.settings)
        starts = self._starts(epoch)[number * rows : (number + 1) * rows]
        return make_windows(self.texts, starts, self.settings.data.max_length)

    def lines(self, indices: Sequence[int]) -> list[str]:
        """`file:line` of the texts in which windows start."""
        return [self.texts.line_of(index) for index in indices]

    def _starts(self, epoch: int) -> npt.NDArray[np.int64]:
        if self._epoch is None or self._epoch[0] != epoch:
            length, seed = self.settings.data.max_length, self.settings.seed
            planned = epoch_windows(len(self.texts), length, seed=seed, epoch=epoch)
            self._epoch = (epoch, planned)
        return self._epoch[1]


class ValidationWindows:
    """All windows of validation texts, in order.

    Args:
        texts: the stream.
        length: of a window.
        rows: windows of a batch.
    """

    def __init__(self, texts: EncodedTexts, length: int, rows: int) -> None:
        self.texts = texts
        self.length = length
        self.rows = rows

    def __iter__(self) -> Iterator[WindowBatch]:
        starts = window_starts(len(self.texts), self.length, shift=0)
        for first in range(0, len(starts), self.rows):
            yield make_windows(self.texts, starts[first : first + self.rows], self.length)


def prepare_language_model(
    run_dir: Path, settings: RunSettings, tokenizers: TokenizerPair | None, events: Events
) -> LanguageModelTask:
    """Read, check and encode texts; arguments as `heedful.train.task.prepare_task`.

    Raises:
        DataError: when the texts cannot be used.
        ConfigError: when a batch has no room for a window, or a setting is for pairs only.
    """
    check_task_settings(settings)
    check_room(settings)
    data = settings.data
    train = [document_reader(spec, data.documents) for spec in data.train]

    def train_new() -> TokenizerPair:
        tokenizer = train_tokenizer(settings.tokenizer, all_texts(train))
        return TokenizerPair(tokenizer, tokenizer)

    tokenizers = tokenizers_for(settings, tokenizers, train_new, events)
    texts, valid = encode_documents(run_dir, settings, train, tokenizers, events)
    return LanguageModelTask(settings, tokenizers, texts, valid)


def encode_documents(
    run_dir: Path,
    settings: RunSettings,
    train: Sequence[TextReader],
    tokenizers: TokenizerPair,
    events: Events,
) -> tuple[EncodedTexts, EncodedTexts | None]:
    """Encode the training texts, and the validation texts where there are some.

    Args:
        run_dir: where encoded data is kept unless `data.cache` is set.
        settings: of the run; they name the validation files.
        train: the training files.
        tokenizers: the same one twice.
        events: who is told.
    """
    data = settings.data
    cache = Path(data.cache) if data.cache is not None else run_dir / "data"
    texts = encode_and_tell("training", train, tokenizers, cache, events)
    if not data.valid:
        return texts, None
    readers = [document_reader(spec, data.documents) for spec in data.valid]
    return texts, encode_and_tell("validation", readers, tokenizers, cache, events)


def encode_and_tell(
    name: str,
    readers: Sequence[TextReader],
    tokenizers: TokenizerPair,
    cache: Path,
    events: Events,
) -> EncodedTexts:
    """Encode texts and say how many they are.

    Args:
        name: what to call them.
        readers: the files.
        tokenizers: the same one twice.
        cache: folder of encoded files.
        events: who is told.
    """
    texts = encode_texts(readers, tokenizers.source, cache, notice=events.warn)
    unknown = sum(int((ids == tokenizers.source.unk).sum()) for ids in texts.ids)
    events.note(
        f"{name}: {texts.texts:,} text{'s' * (texts.texts != 1)}, {len(texts):,} tokens, "
        f"{unknown / len(texts):.2%} of them unknown"
    )
    return texts


def weighted_fingerprint(texts: EncodedTexts, settings: RunSettings) -> str:
    """Changes when the training texts, the tokenizer or the weights of the files do."""
    weights = " ".join(str(corpus.weight) for corpus in settings.data.train)
    return hashlib.sha256(f"{texts.fingerprint} {weights}".encode()).hexdigest()


def all_texts(readers: Sequence[TextReader]) -> list[str]:
    """The texts of files, to train a tokenizer on."""
    return [document.text for reader in readers for document in reader]


def _rows(settings: RunSettings) -> int:
    return settings.data.budget // settings.data.max_length
