"""Coverage of the source by attention, and log-probabilities of given targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from heedful.data.padding import pad
from heedful.errors import ConfigError
from heedful.models.translator import Translator, TranslatorState
from heedful.search.search_settings import Hypothesis, Specials
from heedful.search.step_model import AttentiveModel, Ensemble, State, StepModel, log_probabilities


def coverage(attention: Tensor, source_positions: Tensor) -> Tensor:
    """Return the coverage of a source by a target's attention (Wu 2016, equation 14, β = 1).

    Args:
        attention: weights [N, B, H, T, S], 0 in padded rows; layers and heads are averaged.
        source_positions: positions [B, S] int64; −1 is padding.

    Returns:
        [B] float64, at most 0: the sum over source tokens of log(min(attention received, 1)).
    """
    received = attention.double().mean((0, 2)).sum(1)  # [B, S]
    # A source token without any attention would give −∞, whatever the others have.
    tiny = torch.finfo(torch.float64).tiny
    logs = received.clamp(tiny, 1.0).log()
    return logs.masked_fill(source_positions < 0, 0.0).sum(-1)


def rank_by_coverage(
    model: object,
    source: Tensor,
    source_positions: Tensor,
    found: Sequence[Sequence[Hypothesis]],
    specials: Specials,
    strength: float,
) -> list[list[Hypothesis]]:
    """Rank finished hypotheses by the sum of normalised score and weighted coverage.

    Args:
        model: model that recomputes its attention for every hypothesis.
        source: ids [B, S] int64.
        source_positions: positions [B, S] int64; −1 is padding.
        found: hypotheses of each sentence, best first.
        specials: special ids for the decoder's input.
        strength: weight β of coverage (Wu 2016).

    Raises:
        ConfigError: when the model has no attention.
    """
    if not isinstance(model, AttentiveModel):
        what = "The coverage penalty needs a model with attention"
        raise ConfigError(what, where="coverage_penalty")
    ranked: list[list[Hypothesis]] = [[] for _ in found]
    # Hypotheses of one rank form a batch, so no source is repeated within it.
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
        # Coverage must not lift a hypothesis over one that lacks fewer phrases.
        hypotheses.sort(key=lambda h: (len(h.missing), -h.normalized_score))
    return ranked


def decoder_input(
    targets: Sequence[Sequence[int]], specials: Specials, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return targets as decoder inputs: after a begin token, padded on the right.

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
    """Return the natural-log probabilities of targets given their sources.

    Args:
        model: model, of which only `start` and `step` are used.
        source: ids [B, S] int64.
        source_positions: positions [B, S] int64; −1 is padding.
        targets: ids of each target, without special tokens.
        specials: special ids of the model.

    Returns:
        For each target the log-probability of every token and, last, of the end token.
    """
    if not targets:
        return []
    rows = [torch.tensor([*target, specials.eos]) for target in targets]
    wanted = pad_sequence(rows, batch_first=True, padding_value=specials.eos).to(source.device)
    # Step by step and not in one pass: ensembles and shortlists only have steps.
    state = model.start(source, source_positions)
    tokens = torch.full_like(wanted[:, :1], specials.bos)
    steps: list[Tensor] = []
    for step in range(wanted.shape[1]):
        logits, state = model.step(state, tokens)
        tokens = wanted[:, step : step + 1]  # end tokens after a target's end, which do not count
        steps.append(log_probabilities(logits)[:, 0].gather(-1, tokens))
    scores = torch.cat(steps, 1).tolist()
    return [tuple(row[: len(target) + 1]) for row, target in zip(scores, targets, strict=True)]


def attention_of(
    model: StepModel[State], state: State, targets: Sequence[Sequence[int]], specials: Specials
) -> Tensor:
    """Return the attention to the source in the step that predicts each target token.

    It is the mean over the heads of the upper half of the layers; lower layers hardly attend to the
    word that is translated.

    Args:
        model: translator, or ensemble of translators, whose members are averaged.
        state: result of `start` for the sources [B, S].
        targets: ids of each target, without special tokens.
        specials: special ids for the decoder's input.

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
    # A mixed stack may attend to its source in some layers only.
    layers = sorted(translator.decoder.memory_attention().values())
    upper = layers[len(layers) // 2 :]
    return translator.attention_from(begun, target, positions, upper).mean((0, 2))
