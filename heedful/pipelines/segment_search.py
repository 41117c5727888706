"""A batch of segments: search for its translations, with alignments, or score given ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from heedful.data.batches import source_tensors
from heedful.evaluate.expected_utility import expected_chrf
from heedful.pipelines.text_splitting import Segment, SegmentResult, distinct_texts
from heedful.search.alignment import Alignment, align
from heedful.search.dispatch import search
from heedful.search.lexical_shortlist import Shortlist
from heedful.search.phrase_automaton import RequiredPhrase, WordBoundaries
from heedful.search.required_phrases import Requirements, widened_beam
from heedful.search.scoring import attention_of, score_targets
from heedful.search.search_settings import Hypothesis, SearchSettings, Specials
from heedful.search.step_model import StepModel
from heedful.text.tokenizer_pair import TokenizerPair


@dataclass(frozen=True)
class SearchItem:
    """A segment to translate.

    Args:
        segment: its text and ids.
        line: the number of its text, from 1.
        name: the number its random draws depend on.
        prefix: ids that its translation begins with.
        phrases: that its translation must contain.
        read: its tokens with translations of terms, if the model is to read some.
        origins: for each of these, the number of the text's token that it is or stands beside.
        copied: tokens of the translations.
    """

    segment: Segment
    line: int
    name: int
    prefix: Sequence[int]
    phrases: Sequence[RequiredPhrase] = ()
    read: Sequence[int] = ()
    origins: Sequence[int] = ()
    copied: Sequence[int] = ()

    @property
    def ids(self) -> Sequence[int]:
        """The tokens that the model reads."""
        return self.read or self.segment.ids

    @property
    def needed(self) -> list[int]:
        """Tokens that its translation must or may well contain."""
        phrases = [id for each in self.phrases for ids in each.alternatives for id in ids]
        return [*self.prefix, *phrases, *self.copied]

    def beam(self, settings: SearchSettings) -> int:
        """The hypotheses that its search keeps: more where phrases are required."""
        return widened_beam(settings.width, self.phrases)


@dataclass(frozen=True)
class SegmentSearch:
    """A search over batches of segments.

    Args:
        model: the translator, or an ensemble of some.
        device: of the model.
        tokenizers: of source and target.
        settings: of the search.
        longest: most tokens the model can generate, if its positions end somewhere.
        alignment: also give alignments.
        shortlist: translations are made of these tokens; of any if unset.
        size: V, tokens of the model.
    """

    model: StepModel[Any]
    device: torch.device
    tokenizers: TokenizerPair
    settings: SearchSettings
    longest: int | None
    alignment: bool
    shortlist: Shortlist | None
    size: int

    def __call__(self, items: Sequence[SearchItem]) -> list[SegmentResult]:
        """Translate a batch, in its order; all items need beams of one width."""
        settings, specials = self.settings, target_specials(self.tokenizers)
        phrases = [item.phrases for item in items]
        if any(phrases):
            settings = settings.model_copy(update={"beam": items[0].beam(settings)})
        ids = [item.ids for item in items]
        source, positions = _sources(ids, self.tokenizers, self.device)
        prefixes = [item.prefix for item in items]
        # Different tokens may spell the same text, so a list of texts needs some in reserve.
        several = settings.n_best > 1 and not settings.sampling
        vocabulary = None
        if self.shortlist is not None:
            needed = [item.needed for item in items]
            vocabulary = self.shortlist.restrict(ids, needed, specials, self.device)
        required, reserved = None, self.tokenizers.unwritten
        if any(phrases) or reserved:
            words = WordBoundaries.of(self.tokenizers.word_edges, self.size)
            required = Requirements(phrases, words, reserved)
        # Alignments need the encoded sources once more.
        begun = self.model.start(source, positions) if self.alignment else None
        results = search(
            self.model,
            source,
            positions,
            settings.model_copy(update={"n_best": settings.risk_samples or settings.width})
            if several or settings.risk_samples
            else settings,
            specials=specials,
            prefixes=prefixes,
            names=[item.name for item in items],
            longest=self.longest,
            begun=begun,
            vocabulary=vocabulary,
            required=required,
        )
        if several:
            target = self.tokenizers.target
            results = [distinct_texts(each, target)[: settings.n_best] for each in results]
        if settings.alternatives:  # one of each group, of which a later may be the better
            results = [sorted(each, key=lambda h: -h.normalized_score) for each in results]
        if settings.risk_samples:
            results = [self._least_risk(each) for each in results]
        if not self.alignment:
            return [
                SegmentResult(hypotheses, phrases=item.phrases)
                for item, hypotheses in zip(items, results, strict=True)
            ]
        alignments = self._alignments(begun, items, results)
        return [
            SegmentResult(hypotheses, rows, item.phrases)
            for item, hypotheses, rows in zip(items, results, alignments, strict=True)
        ]

    def _least_risk(self, samples: Sequence[Hypothesis]) -> list[Hypothesis]:
        """The samples most like all, ranked by their mean chrF against all; each text once."""
        target = self.tokenizers.target
        utilities = expected_chrf([target.decode(sample.tokens) for sample in samples])
        ranked = [
            replace(sample, normalized_score=utility)
            for sample, utility in zip(samples, utilities, strict=True)
        ]
        ranked.sort(key=lambda sample: -sample.normalized_score)
        return distinct_texts(ranked, target)[: self.settings.n_best]

    def _alignments(
        self, begun: Any, items: Sequence[SearchItem], results: Sequence[Sequence[Hypothesis]]
    ) -> list[list[Alignment]]:
        """Align every hypothesis; those of one rank together."""
        specials = target_specials(self.tokenizers)
        alignments: list[list[Alignment]] = [[] for _ in results]
        for rank in range(max(map(len, results))):
            rows = [i for i, hypotheses in enumerate(results) if rank < len(hypotheses)]
            targets = [results[i][rank].tokens for i in rows]
            state = self.model.reorder(begun, torch.tensor(rows, device=self.device)[:, None])
            attention = attention_of(self.model, state, targets, specials).double().cpu()
            for i, target, weights in zip(rows, targets, attention, strict=True):
                alignments[i].append(self._align(weights, items[i], target))
        return alignments

    def _align(self, weights: Tensor, item: SearchItem, target: Sequence[int]) -> Alignment:
        tokenizers, segment = self.tokenizers, item.segment
        if item.read:
            frame = len(tokenizers.source.first)
            weights = _of_text(weights, item.origins, frame, len(segment.ids))
        source_side = (tokenizers.source, segment.ids, segment.text)
        text = tokenizers.target.decode(target)
        return align(weights, source_side, (tokenizers.target, target, text))


def score_pairs(
    model: StepModel[Any],
    device: torch.device,
    tokenizers: TokenizerPair,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
) -> list[tuple[float, ...]]:
    """Natural-log probabilities of given translations, by the steps a search takes.

    Args:
        model: the translator, or an ensemble of some.
        device: of the model.
        tokenizers: of source and target.
        pairs: ids of a source and its target.

    Returns:
        For each pair those of the target's tokens and of its end token.
    """
    source, positions = _sources([ids for ids, _ in pairs], tokenizers, device)
    targets = [ids for _, ids in pairs]
    return score_targets(model, source, positions, targets, target_specials(tokenizers))


def align_pairs(
    model: StepModel[Any],
    device: torch.device,
    tokenizers: TokenizerPair,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
) -> list[Alignment]:
    """Word alignments of given translations, by the attention of a search that found them.

    Args:
        model: the translator, or an ensemble of some.
        device: of the model.
        tokenizers: of source and target.
        pairs: ids of a source and its target.
    """
    source, positions = _sources([ids for ids, _ in pairs], tokenizers, device)
    targets = [ids for _, ids in pairs]
    begun = model.start(source, positions)
    attention = attention_of(model, begun, targets, target_specials(tokenizers)).double().cpu()
    alignments = []
    for weights, (ids, target) in zip(attention, pairs, strict=True):
        sides = ((tokenizers.source, ids), (tokenizers.target, target))
        left, right = ((one, each, one.decode(each)) for one, each in sides)
        alignments.append(align(weights, left, right))
    return alignments


def _of_text(weights: Tensor, origins: Sequence[int], frame: int, size: int) -> Tensor:
    """Attention [T, S] to an annotated source as attention to the tokens of its text.

    Args:
        weights: to the tokens that the encoder read.
        origins: of the annotated tokens; a term has what its translation got.
        frame: tokens before them.
        size: tokens of the text.
    """
    inner = weights[:, frame : frame + len(origins)]
    places = torch.tensor(origins, device=weights.device)
    gathered = weights.new_zeros(len(weights), size).index_add(1, places, inner)
    return torch.cat([weights[:, :frame], gathered], dim=1)


def target_specials(tokenizers: TokenizerPair) -> Specials:
    """The special tokens of the target."""
    target = tokenizers.target
    return Specials(pad=target.pad, bos=target.bos, eos=target.eos)


def _sources(
    ids: Sequence[Sequence[int]], tokenizers: TokenizerPair, device: torch.device
) -> tuple[Tensor, Tensor]:
    source, positions = source_tensors(list(ids), tokenizers.source)
    return source.to(device), positions.to(device)
