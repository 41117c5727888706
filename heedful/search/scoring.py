"""Coverage of the source by attention, and scores of given targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from heedful.data.batches import pad
from heedful.models.translator import Translator, TranslatorState
from heedful.search.search_settings import Hypothesis, Specials
from heedful.search.step_model import AttentiveModel, Ensemble, State, StepModel, log_probabilities


def coverage(attention: Tensor, source_positions: Tensor) -> Tensor:
    """The coverage of a source by a target's attention (Wu 2016, equation 14, β = 1).

    Args:
        attention: [N, B, H, T, S], 0 in padded rows; layers and heads are averaged.
        source_positions: [B, S], −1 for padding.

    Returns:
        [B] float64, at most 0: the sum over source tokens of log(min(attention received, 1)).
    """
    received = attention.double().mean((0, 2)).sum(1)  # [B, S]
    tiny = torch.finfo(torch.float64).tiny
    logs = received.clamp(tiny, 1.0).log()
    return logs.masked_fill(source_positions < 0, 0.0).sum(-1)


def rank_by_coverage(
    model: AttentiveModel,
    source: Tensor,
    source_positions: Tensor,
    found: Sequence[Sequence[Hypothesis]],
    specials: Specials,
    strength: float,
) -> list[list[Hypothesis]]:
    """Rank finished hypotheses anew, their coverage added to the normalised score.

    Args:
        model: recomputes its attention for every hypothesis.
        source: [B, S].
        source_positions: [B, S].
        found: hypotheses of each sentence; rank k of all sentences is looked at together.
        specials: for the decoder's input.
        strength: β of Wu 2016.
    """
    ranked: list[list[Hypothesis]] = [[] for _ in found]
    for rank in range(max(map(len, found), default=0)):
        rows = [i for i, hypotheses in enumerate(found) if rank < len(hypotheses)]
        chosen = [found[i][rank] for i in rows]
        index = torch.tensor(rows, device=source.device)
        target, positions = decoder_input([h.tokens for h in chosen], specials, source.device)
        here = source_positions[index]
        attention = model.cross_attention(source[index], here, target, positions)
        bonus = (strength * coverage(attention, here)).tolist()
        for i, hypothesis, extra in zip(rows, chosen, bonus, strict=True):
            score = hypothesis.normalized_score + extra
            ranked[i].append(replace(hypothesis, normalized_score=score))
    for hypotheses in ranked:
        hypotheses.sort(key=lambda h: (len(h.missing), -h.normalized_score))
    return ranked


def decoder_input(
    targets: Sequence[Sequence[int]], specials: Specials, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Targets as the decoder reads them: a beginning-of-sequence token first, padded on the right.

    Returns:
        Ids and positions [B, T] int64; positions are −1 for padding.
    """
    tokens, positions = pad(targets, specials.pad, first=specials.bos)
    return tokens.to(device), positions.to(device)


@torch.inference_mode()
def score_targets(
    model: StepModel[State],
    source: Tensor,
    source_positions: Tensor,
    targets: Sequence[Sequence[int]],
    specials: Specials,
) -> list[tuple[float, ...]]:
    """Natural-log probabilities of targets given their sources.

    Args:
        model: known only by start and step.
        source: [B, S] int64.
        source_positions: [B, S] int64, −1 for padding.
        targets: ids of each target, without special tokens.
        specials: the model's special ids.

    Returns:
        For each target the log-probability of every token and, last, of the end token.
    """
    if not targets:
        return []
    longest = max(map(len, targets))
    wanted = torch.full((len(targets), longest + 1), specials.eos, dtype=torch.int64)
    for row, target in zip(wanted, targets, strict=True):
        row[: len(target)] = torch.tensor(target, dtype=torch.int64)
    wanted = wanted.to(source.device)
    state = model.start(source, source_positions)
    tokens = torch.full_like(wanted[:, :1], specials.bos)
    steps: list[Tensor] = []
    for step in range(longest + 1):
        logits, state = model.step(state, tokens)
        tokens = wanted[:, step : step + 1]  # past its end a target reads end tokens, not counted
        steps.append(log_probabilities(logits)[:, 0].gather(-1, tokens))
    scores = torch.cat(steps, 1).tolist()
    return [tuple(row[: len(target) + 1]) for row, target in zip(scores, targets, strict=True)]


def attention_of(
    model: StepModel[State], state: State, targets: Sequence[Sequence[int]], specials: Specials
) -> Tensor:
    """Attention of each target token to the source while it was predicted.

    Args:
        model: a translator, or an ensemble of some, whose members are averaged. Heads are averaged,
            over the upper half of the layers: the lower ones hardly look at the word being
            translated.
        state: from `start`, of the sources [B, S].
        targets: ids of each target, without special tokens.
        specials: for the decoder's input.

    Returns:
        [B, T, S] float32; row t belongs to target token t, the row after the last to the end token.
    """
    translator: object = model
    if isinstance(translator, Ensemble):
        assert isinstance(state, tuple)
        pairs = zip(translator.members, state, strict=True)
        each = [attention_of(member, own, targets, specials) for member, own in pairs]
        return torch.stack(each).mean(0)
    translator = cast("Translator", translator)
    begun = cast("TranslatorState", state)
    target, positions = decoder_input(targets, specials, begun.memory_positions.device)
    layers = sorted(translator.decoder.memory_attention().values())
    upper = layers[len(layers) // 2 :]
    return translator.attention_from(begun, target, positions, upper).mean((0, 2))
