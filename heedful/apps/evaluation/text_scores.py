"""Log-probability of each token of given texts under a language model, causal or masked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from heedful.apps.evaluation.text_likelihood import MaskedReading
from heedful.apps.evaluation.text_losses import (
    BATCH_TOKENS,
    FramedTexts,
    Progress,
    losses_of_windows,
    text_windows,
    window_length,
)
from heedful.errors import ModelError
from heedful.pipelines.text_splitting import TargetScore


def score_texts(
    pipeline: Any,
    texts: Sequence[str],
    *,
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
) -> list[TargetScore]:
    """Return the natural-log probability of texts, in total and by token.

    A causal model predicts each token from those before it, and the end token after the last. A
    masked model predicts each token while it alone is hidden, and has no end token: the sum is a
    pseudo-log-likelihood (Salazar 2020).

    Args:
        pipeline: language model, causal or masked, from `heedful.load`.
        texts: independent texts, at least one of them not empty; longer ones than the model reads
            are cut into windows, which overlap by half for a causal model.
        batch_tokens: positions of a batch; they do not change the result.
        progress: receiver of (done, total) windows, or texts of a masked model.

    Raises:
        ModelError: when the model is no language model, or reads texts with a memory.
        DataError: when there is no text.
    """
    framed = FramedTexts.of(pipeline.tokenizer, texts)
    scores: list[list[float]] = []
    if "fill" in pipeline.verbs:
        reading = MaskedReading.of(pipeline, None)
        for done, ids in enumerate(framed.ids, start=1):
            parts = reading.losses(ids, batch_tokens)
            scores.append([-loss for part in parts for loss in part])
            if progress is not None:
                progress(done, len(framed.ids))
    else:
        if pipeline.spec.memory is not None:
            raise ModelError(
                "A model with a memory reads texts segment by segment",
                remedy="Measure its perplexity: heedful evaluate MODEL --text FILE",
            )
        length = window_length(pipeline, None)
        windows = text_windows(framed.predictions, length, max(1, length // 2))
        found: dict[Any, list[float]] = {
            window: (-losses[window.scored - window.start :]).tolist()
            for window, losses in losses_of_windows(
                pipeline, framed, windows, batch_tokens, progress
            )
        }
        scores = [[] for _ in texts]
        for window in windows:  # in the order of the text, whatever batch had them
            scores[window.text] += found[window]
    pieces = (pipeline.tokenizer.pieces(ids[1:-1]) for ids in framed.ids)
    return [TargetScore.of(names, row) for names, row in zip(pieces, scores, strict=True)]
