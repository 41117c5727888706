"""Pseudo-likelihood of texts under a masked language model (Salazar 2020)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from heedful.apps.evaluation.text_likelihood import TextLikelihood, likelihood_of
from heedful.apps.evaluation.text_losses import BATCH_TOKENS, DEFAULT_LENGTH, FramedTexts, Notice
from heedful.errors import ConfigError
from heedful.pipelines.encoder_input import EncoderInput, encode, frame, longest_input
from heedful.pipelines.text_encoding import EncoderPipeline


def pseudo_likelihood(
    pipeline: EncoderPipeline,
    texts: Sequence[str],
    *,
    length: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
    progress: Notice | None = None,
) -> TextLikelihood:
    """Measure how well a masked model predicts each token of a text from all others (Salazar 2020).

    Each token is hidden once, so a text of n tokens is read n times.

    Args:
        pipeline: masked language model, from `heedful.load_encoder`.
        texts: texts, at least one; texts longer than `length` are cut into windows.
        length: maximum number of tokens of an input, special ones included.
        batch_tokens: positions of a batch.
        progress: receiver of (done, total) tokens.

    Raises:
        ModelError: when the model cannot fill masks.
        ConfigError: when a window has no room for a token.
        DataError: when there is no text.
    """
    pipeline.require("masked_lm")
    tokenizer, mask = pipeline.tokenizer, pipeline.tokenizer.mask
    if mask is None:
        raise ConfigError("The model's tokenizer has no mask token", remedy="Give a masked model")
    length = longest_input(pipeline.model.spec) or DEFAULT_LENGTH if length is None else length
    # Every window has special tokens of its own.
    room = length - len(tokenizer.first) - len(tokenizer.last)
    if room < 1:
        raise ConfigError(f"There is no room for a token in {length}", where="length")
    framed = FramedTexts.of(tokenizer, texts)
    tokens = sum(framed.predictions) - len(texts)  # end tokens are not predicted
    total, done = 0.0, 0  # nats; tokens
    for ids in framed.ids:
        # The begin and end token of a causal language model are left out.
        for start in range(1, len(ids) - 1, room):
            part = ids[start : min(start + room, len(ids) - 1)]
            total += _hidden_loss(pipeline, part, mask, batch_tokens)
            done += len(part)
            if progress is not None:
                progress(done, tokens)
    return likelihood_of(framed, total, tokens, length, room, pseudo=True)


def _hidden_loss(
    pipeline: EncoderPipeline, ids: Sequence[int], mask: int, batch_tokens: int
) -> float:
    """Return the summed loss of tokens in nats, each predicted while it alone is hidden."""
    whole = frame(pipeline.tokenizer, ids)
    items = [
        EncoderInput((*whole.ids[:place], mask, *whole.ids[place + 1 :]), whole.first, whole.second)
        for place in range(whole.first, whole.first + len(ids))
    ]
    right = torch.tensor(ids, device=pipeline.model.embedding.weight.device)
    total = 0.0
    with pipeline.computing():
        for batch in encode(
            pipeline.model, items, padding=pipeline.tokenizer.pad, batch_tokens=batch_tokens
        ):
            rows = torch.tensor(batch.numbers, device=right.device)
            # Input i hides token i of the part, which comes after the first special tokens.
            states = batch.states[torch.arange(len(rows)), rows + whole.first]
            # The head runs on the hidden tokens only: 1 / L of the cost of all positions.
            logits = pipeline.model.masked_lm_logits(states).float()
            total += float(functional.cross_entropy(logits, right[rows], reduction="sum"))
    return total
