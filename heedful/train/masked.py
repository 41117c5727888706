"""Masked language modelling as a task: text in, an encoder that guesses hidden tokens out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from heedful.data.documents import document_reader
from heedful.data.masking import Masking, masked_batch
from heedful.data.rows import RowBatch, Rows, cut_texts, plan_rows, validation_rows
from heedful.data.windows import NO_TARGET
from heedful.models.encoder import EncoderModel
from heedful.models.family import MaskedLMHeadSpec
from heedful.models.shapes import encoder_spec
from heedful.nn.losses import smoothed_cross_entropy
from heedful.text.pair import TokenizerPair
from heedful.text.trainer import train_tokenizer
from heedful.train.initial import begin_with, tokenizers_of
from heedful.train.language_model import all_texts, encode_and_tell, weighted_fingerprint
from heedful.train.objective import Context, LossSum, with_penalty
from heedful.train.randomness import mix
from heedful.train.task_settings import check_room, check_task_settings
from heedful.train.validation import Validator

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from heedful.data.order import Indices
    from heedful.data.stream import EncodedTexts
    from heedful.device import Precision
    from heedful.events import Events
    from heedful.train.objective import Objective
    from heedful.train.settings import RunSettings


class MaskedTask:
    """Texts, read and encoded.

    Args:
        settings: of the run.
        tokenizers: the same one twice; it has a mask token.
        texts: to train on.
        valid: to validate on, or None.
        events: told what of a model that training begins with is left out.
    """

    def __init__(
        self,
        settings: RunSettings,
        tokenizers: TokenizerPair,
        texts: EncodedTexts,
        valid: EncodedTexts | None,
        events: Events,
    ) -> None:
        self.settings = settings
        self.tokenizers = tokenizers
        self.valid = valid
        self.events = events
        self.fingerprint = weighted_fingerprint(texts, settings)
        objective = settings.objective
        self.masking = Masking(
            tokenizers.source, objective.mask_share, whole_words=objective.whole_words
        )
        self.source = MaskedSource(texts, self.masking, tokenizers, settings)

    def new_model(self) -> EncoderModel:
        """The model with its first weights, a function of the seed."""
        settings = self.settings
        torch.manual_seed(mix(settings.seed))
        tied = settings.model.share_embeddings != "none"
        head = MaskedLMHeadSpec(activation="gelu", tied=tied)
        size = self.tokenizers.source.size
        model = EncoderModel(encoder_spec(settings.model, size, settings.data.max_length, (head,)))
        if settings.init is not None:
            for line in begin_with(model, Path(settings.init)):
                self.events.note(line)
        return model

    def objective(self) -> MaskedObjective:
        """Cross-entropy of the hidden tokens."""
        return MaskedObjective(self.settings.objective.label_smoothing)

    def validator(
        self, objective: Objective, precision: Precision, events: Events
    ) -> Validator | None:
        """The loss on the validation texts, with the same tokens hidden each time."""
        if self.valid is None:
            return None
        batches = ValidationRows(self.valid, self.masking, self.tokenizers, self.settings)
        return Validator(batches, objective, self.settings.validation, precision=precision)


class MaskedObjective:
    """Cross-entropy of the tokens that were chosen, over all pieces.

    Args:
        label_smoothing: in training.
    """

    def __init__(self, label_smoothing: float) -> None:
        self.label_smoothing = label_smoothing

    def loss(self, model: Any, batch: RowBatch, context: Context) -> LossSum:
        """The summed loss over the batch's targets."""
        wanted = batch.targets != NO_TARGET
        states, added = with_penalty(model, batch.ids, batch.positions, None)
        head = model.heads["masked_lm"]
        loss, nll = smoothed_cross_entropy(
            head.features(states[wanted]),
            head.projection.weight,
            batch.targets[wanted],
            self.label_smoothing if model.training else 0.0,
            head.bias,
        )
        tokens = batch.target_tokens
        return LossSum(loss + tokens * added, tokens, {"nll": nll})


class MaskedSource:
    """Batches of rows; rows, batches and masks are functions of the seed, the epoch and the place.

    Where long texts are cut into rows differs by epoch.

    Args:
        texts: the stream.
        masking: hides tokens.
        tokenizers: of the stream.
        settings: of the run: row length, budget, seed, weights of the files.
    """

    def __init__(
        self,
        texts: EncodedTexts,
        masking: Masking,
        tokenizers: TokenizerPair,
        settings: RunSettings,
    ) -> None:
        self.texts = texts
        self.masking = masking
        self.tokenizer = tokenizers.source
        self.settings = settings
        self._epoch: tuple[int, Rows, list[Indices]] | None = None

    def count(self, epoch: int) -> int:
        """Batches of an epoch."""
        return len(self._planned(epoch)[1])

    def batch(self, epoch: int, number: int) -> RowBatch:
        """One batch of an epoch."""
        rows, batches = self._planned(epoch)
        return masked_batch(
            self.texts,
            rows,
            batches[number],
            self.masking,
            self.tokenizer,
            seed=self.settings.seed,
            epoch=epoch,
        )

    def lines(self, indices: Sequence[int]) -> list[str]:
        """`file:line` of the texts in which rows start."""
        return [self.texts.line_of(index) for index in indices]

    def _planned(self, epoch: int) -> tuple[Rows, list[Indices]]:
        if self._epoch is None or self._epoch[0] != epoch:
            data, seed = self.settings.data, self.settings.seed
            rows = cut_texts(self.texts, self.tokenizer, data.max_length, seed=seed, epoch=epoch)
            weights = [corpus.weight for corpus in data.train]
            batches = plan_rows(rows, self.texts, weights, data, seed=seed, epoch=epoch)
            self._epoch = (epoch, rows, batches)
        return self._epoch[1:]


class ValidationRows:
    """All rows of validation texts, the same ones with the same masks each time.

    The masks do not depend on the run's seed, so that the losses of runs can be compared.

    Args:
        texts: the stream.
        masking: hides tokens.
        tokenizers: of the stream.
        settings: of the run: row length and budget.
    """

    def __init__(
        self,
        texts: EncodedTexts,
        masking: Masking,
        tokenizers: TokenizerPair,
        settings: RunSettings,
    ) -> None:
        self.texts = texts
        self.masking = masking
        self.tokenizer = tokenizers.source
        self.rows = cut_texts(texts, self.tokenizer, settings.data.max_length, seed=0, epoch=0)
        self.batches = validation_rows(self.rows, texts, settings.data)

    def __iter__(self) -> Iterator[RowBatch]:
        for indices in self.batches:
            yield masked_batch(
                self.texts, self.rows, indices, self.masking, self.tokenizer, seed=0, epoch=0
            )


def prepare_masked(
    run_dir: Path, settings: RunSettings, tokenizers: TokenizerPair | None, events: Events
) -> MaskedTask:
    """Read, check and encode texts; arguments as `heedful.train.task.prepare_task`.

    Raises:
        DataError: when the texts cannot be used.
        ConfigError: when a batch has no room for a row, or a setting is for another task.
    """
    check_task_settings(settings)
    check_room(settings)
    data = settings.data
    train = [document_reader(spec, data.documents) for spec in data.train]
    if tokenizers is None and settings.init is not None:
        tokenizers = tokenizers_of(Path(settings.init))
    if tokenizers is None:
        events.note("Training the tokenizer")
        tokenizers = encoder_tokenizers(settings, all_texts(train))
    cache = Path(data.cache) if data.cache is not None else run_dir / "data"
    texts = encode_and_tell("training", train, tokenizers, cache, events)
    valid = None
    if data.valid:
        readers = [document_reader(spec, data.documents) for spec in data.valid]
        valid = encode_and_tell("validation", readers, tokenizers, cache, events)
    return MaskedTask(settings, tokenizers, texts, valid, events)


def encoder_tokenizers(settings: RunSettings, texts: list[str]) -> TokenizerPair:
    """An encoder's tokenizer, twice, within the size that was asked for.

    Args:
        settings: of the run.
        texts: to train it on.
    """
    spec = settings.tokenizer
    smaller = spec.model_copy(update={"vocabulary_size": spec.vocabulary_size - 1})
    tokenizer = train_tokenizer(smaller, texts).for_encoder()
    return TokenizerPair(tokenizer, tokenizer)
