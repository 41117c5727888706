"""Scores and word alignments of known targets, and minimum-risk ranking of samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from heedful.evaluate.expected_utility import expected_chrf
from heedful.pipelines.batching import plan_batches
from heedful.pipelines.search_items import SearchItem, encoder_input, target_specials
from heedful.pipelines.text_splitting import distinct_texts
from heedful.search.alignment import Alignment, align
from heedful.search.scoring import attention_of, score_targets
from heedful.search.search_settings import Hypothesis
from heedful.search.step_model import StepModel
from heedful.text.tokenizer import TextTokenizer
from heedful.text.tokenizer_pair import TokenizerPair

Pair = tuple[Sequence[int], Sequence[int]]
"""Token ids of a source and of its target."""


def plan_pairs(
    pairs: Sequence[Pair], *, batch_tokens: int, batch_size: int | None
) -> list[list[int]]:
    """Group pairs into batches by their longer sides.

    Args:
        pairs: pairs to score or to align.
        batch_tokens, batch_size: arguments of `plan_batches`.

    Returns:
        Indices of the pairs of each batch.
    """
    # The end token adds one position to the longer side.
    lengths = [max(map(len, pair)) + 1 for pair in pairs]
    return plan_batches(lengths, width=1, batch_tokens=batch_tokens, batch_size=batch_size)


def score_pairs(
    model: StepModel[Any], device: torch.device, tokenizers: TokenizerPair, pairs: Sequence[Pair]
) -> list[tuple[float, ...]]:
    """Return natural-log probabilities of given translations, by the same steps as a search.

    Args:
        model: translator, or ensemble of translators.
        device: device of the model.
        tokenizers: tokenizers of source and target.
        pairs: token ids of sources and targets.

    Returns:
        For each pair the log-probability of every target token and, last, of the end token.
    """
    source, positions = encoder_input([ids for ids, _ in pairs], tokenizers, device)
    targets = [ids for _, ids in pairs]
    return score_targets(model, source, positions, targets, target_specials(tokenizers))


def align_pairs(
    model: StepModel[Any], device: torch.device, tokenizers: TokenizerPair, pairs: Sequence[Pair]
) -> list[Alignment]:
    """Word-align given translations by cross-attention; arguments are those of `score_pairs`."""
    source, positions = encoder_input([ids for ids, _ in pairs], tokenizers, device)
    targets = [ids for _, ids in pairs]
    # Attention depends on the sources and the given tokens only, so no search is needed.
    state = model.start(source, positions)
    attention = attention_of(model, state, targets, target_specials(tokenizers)).double().cpu()
    alignments = []
    for weights, (ids, target) in zip(attention, pairs, strict=True):
        sides = ((tokenizers.source, ids), (tokenizers.target, target))
        left, right = ((one, each, one.decode(each)) for one, each in sides)
        alignments.append(align(weights.numpy(), left, right))
    return alignments


def align_hypotheses(
    model: StepModel[Any],
    device: torch.device,
    state: Any,
    tokenizers: TokenizerPair,
    items: Sequence[SearchItem],
    results: Sequence[Sequence[Hypothesis]],
) -> list[list[Alignment]]:
    """Word-align every hypothesis of a batch.

    Args:
        model, device, tokenizers: arguments of `score_pairs`.
        state: state of the model from `start`, a row for each item.
        items: segments of the batch.
        results: hypotheses of each item.
    """
    specials = target_specials(tokenizers)
    alignments: list[list[Alignment]] = [[] for _ in results]
    # There is a batch for each rank; items with fewer hypotheses are missing in the last batches.
    for rank in range(max(map(len, results))):
        rows = [i for i, hypotheses in enumerate(results) if rank < len(hypotheses)]
        targets = [results[i][rank].tokens for i in rows]
        chosen = model.reorder(state, torch.tensor(rows, device=device)[:, None])
        attention = attention_of(model, chosen, targets, specials).double().cpu()
        for i, target, weights in zip(rows, targets, attention, strict=True):
            alignments[i].append(_align(tokenizers, weights, items[i], target))
    return alignments


def _align(
    tokenizers: TokenizerPair, weights: Tensor, item: SearchItem, target: Sequence[int]
) -> Alignment:
    """Word-align one hypothesis by the attention [T, S] of its tokens."""
    segment = item.segment
    # The user sees the text without inline translations of terms, so the alignment is to that text.
    if item.annotated:
        frame = len(tokenizers.source.first)
        weights = _attention_to_text(weights, item.origins, frame, len(segment.ids))
    text = tokenizers.target.decode(target)
    source_side = (tokenizers.source, segment.ids, segment.text)
    return align(weights.numpy(), source_side, (tokenizers.target, target, text))


def _attention_to_text(weights: Tensor, origins: Sequence[int], frame: int, size: int) -> Tensor:
    """Map attention [T, S] to an annotated source onto the tokens of its text.

    Args:
        weights: attention to the tokens that the encoder read.
        origins: index of a token of the text for each annotated token; the attention to an inline
            translation counts for its term.
        frame: number of special tokens before the text.
        size: number of tokens of the text.
    """
    inner = weights[:, frame : frame + len(origins)]  # [T, annotated tokens]
    places = torch.tensor(origins, device=weights.device)
    # `index_add` sums the attention to several annotated tokens with the same token of the text.
    gathered = weights.new_zeros(len(weights), size).index_add(1, places, inner)
    return torch.cat([weights[:, :frame], gathered], dim=1)


def least_risk(samples: Sequence[Hypothesis], tokenizer: TextTokenizer) -> list[Hypothesis]:
    """Rank samples by their mean chrF against all of them, each text once.

    Args:
        samples: samples of one segment.
        tokenizer: tokenizer of the target.
    """
    utilities = expected_chrf([tokenizer.decode(sample.tokens) for sample in samples])
    ranked = [
        replace(sample, normalized_score=utility)
        for sample, utility in zip(samples, utilities, strict=True)
    ]
    # A stable sort: among samples of equal utility, the one drawn first comes first.
    ranked.sort(key=lambda sample: -sample.normalized_score)
    return distinct_texts(ranked, tokenizer)
