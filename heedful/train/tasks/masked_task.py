"""Masked language modelling: an encoder that predicts masked tokens (Devlin 2019)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heedful.data.corruption import Masking, masked_batch
from heedful.data.encoded_texts import EncodedTexts, TokenRows
from heedful.models.model_spec import MaskedLMHeadSpec
from heedful.train.objective import MaskedObjective
from heedful.train.task import Setup, Task
from heedful.train.tasks.encoder_task import (
    all_texts,
    document_readers,
    encode_documents,
    encoder_tokenizers,
    fixed_rows,
    new_encoder,
    row_source,
    weighted_fingerprint,
)

if TYPE_CHECKING:
    from heedful.data.batch_plan import Indices
    from heedful.data.batches import RowBatch


def prepare(setup: Setup) -> Task:
    """Read, check and encode texts.

    Raises:
        DataError: when the texts are unusable.
        ConfigError: when the tokenizer of the initial model has no mask token.
    """
    settings, objective = setup.settings, setup.settings.objective
    training = document_readers(setup, "train")
    tokenizers = setup.tokenizers(lambda: encoder_tokenizers(setup, all_texts(setup, training)))
    tokenizer = tokenizers.source
    texts, valid = encode_documents(setup, training, tokenizer)
    masking = Masking(tokenizer, objective.mask_share, whole_words=objective.whole_words)

    def make(texts: EncodedTexts, rows: TokenRows, seed: int, epoch: int) -> RowBatch:
        # Masks are drawn when a batch is made: other tokens every epoch (RoBERTa's dynamic
        # masking).
        return masked_batch(texts, rows, masking, tokenizer, seed=seed, epoch=epoch)

    def sizes(rows: TokenRows) -> Indices:
        return rows.sizes

    # BERT's head multiplies by the embedding table; "none" gives the head a matrix of its own.
    tied = settings.model.share_embeddings != "none"
    head = MaskedLMHeadSpec(activation="gelu", tied=tied)
    return Task(
        tokenizers,
        weighted_fingerprint(setup, texts),
        row_source(setup, texts, tokenizer, sizes, make),
        new_encoder(setup, tokenizers, head),
        MaskedObjective(objective.label_smoothing),
        fixed_rows(setup, valid, tokenizer, sizes, make),
    )
