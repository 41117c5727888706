"""Masked language modelling as a task: text in, an encoder that guesses hidden tokens out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from heedful.data.documents import document_reader
from heedful.data.masking import Masking, masked_batch
from heedful.data.rows import RowBatch, Rows
from heedful.data.windows import NO_TARGET
from heedful.models.family import MaskedLMHeadSpec
from heedful.models.shapes import encoder_spec
from heedful.nn.losses import smoothed_cross_entropy
from heedful.text.pair import TokenizerPair
from heedful.text.trainer import train_tokenizer
from heedful.train.beginning import first_model, tokenizers_for
from heedful.train.language_model import all_texts, encode_documents, weighted_fingerprint
from heedful.train.objective import Context, LossSum, with_penalty
from heedful.train.row_source import RowSource, ValidationRows
from heedful.train.task_settings import check_room, check_task_settings
from heedful.train.validation import Validator

if TYPE_CHECKING:
    from heedful.data.encoded import Indices
    from heedful.data.stream import EncodedTexts
    from heedful.device import Precision
    from heedful.events import Events
    from heedful.text.protocol import TextTokenizer
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
        masking = Masking(
            tokenizers.source, objective.mask_share, whole_words=objective.whole_words
        )
        self.rows = MaskedRows(masking, tokenizers.source)
        self.source = RowSource(texts, self.rows, settings)

    def new_model(self) -> nn.Module:
        """The model with its first weights, a function of the seed."""
        settings = self.settings
        tied = settings.model.share_embeddings != "none"
        head = MaskedLMHeadSpec(activation="gelu", tied=tied)
        size = self.tokenizers.source.size
        spec = encoder_spec(settings.model, size, settings.data.max_length, (head,))
        return first_model(spec, settings, self.tokenizers, self.events)

    def objective(self) -> MaskedObjective:
        """Cross-entropy of the hidden tokens."""
        return MaskedObjective(self.settings.objective.label_smoothing)

    def validator(
        self, objective: Objective, precision: Precision, events: Events
    ) -> Validator | None:
        """The loss on the validation texts, with the same tokens hidden each time."""
        if self.valid is None:
            return None
        batches = ValidationRows(self.valid, self.rows, self.settings)
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


class MaskedRows:
    """Rows with some of their pieces hidden.

    Args:
        masking: hides pieces.
        tokenizer: of the texts.
    """

    def __init__(self, masking: Masking, tokenizer: TextTokenizer) -> None:
        self.masking = masking
        self.tokenizer = tokenizer

    def sizes(self, rows: Rows) -> Indices:
        """Tokens of each row [N]."""
        return rows.counts + rows.frame

    def batch(
        self, texts: EncodedTexts, rows: Rows, indices: Indices, *, seed: int, epoch: int
    ) -> RowBatch:
        """See `RowWork`."""
        return masked_batch(
            texts, rows, indices, self.masking, self.tokenizer, seed=seed, epoch=epoch
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
    tokenizers = tokenizers_for(
        settings, tokenizers, lambda: encoder_tokenizers(settings, all_texts(train)), events
    )
    texts, valid = encode_documents(run_dir, settings, train, tokenizers, events)
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
