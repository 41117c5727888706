"""Gap filling by encoder-decoders such as T5 and BART."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Unpack

from heedful.data.corruption import gap_tokens, target_lead
from heedful.data.padding import source_tensors
from heedful.errors import ConfigError, DataError, ModelError
from heedful.models.translator import Translator
from heedful.pipelines.batching import list_of_texts, plan_batches, split_on_oom
from heedful.pipelines.encoder_input import BATCH_TOKENS, MASK
from heedful.pipelines.predictions import Candidate
from heedful.pipelines.text_encoding import EncodingOptions
from heedful.pipelines.text_pipeline import TextPipeline
from heedful.search.dispatch import search
from heedful.search.search_settings import (
    Hypothesis,
    SearchSettings,
    Specials,
    check_fits,
    longest_output,
)

_NARROWEST = 4
"""Minimum beam width: a narrower beam often misses the best hypothesis."""

Fill = tuple[int, ...]


@dataclass(frozen=True)
class _Gapped:
    """A tokenized text with gaps.

    Args:
        ids: source tokens, without special tokens around them.
        prefix: tokens that the target must begin with.
        parts: known tokens before, between and after the gaps.
    """

    ids: list[int]
    prefix: list[int]
    parts: list[Fill]


class GapPipeline(TextPipeline[Translator]):
    """An encoder-decoder that fills the gaps of texts.

    With one mask for all gaps (BART), the decoder writes the whole text, and the fills are the
    tokens between the known parts. With a sentinel for each gap (T5), it writes the fills only.

    Args:
        model: encoder-decoder, in eval mode.
        tokenizer: tokenizer of source and target, which has tokens for gaps.
        precision: precision of the forward passes; float32 if unset.
    """

    kind = Translator
    verbs = ("fill",)
    refusal = "This model fills no gaps"
    remedy = "Give a model that was trained to fill gaps, such as BERT, BART or T5"

    @cached_property
    def gaps(self) -> tuple[int, ...]:
        """Tokens that stand for gaps: one for all of them, or one for each."""
        return gap_tokens(self.tokenizer)

    @cached_property
    def specials(self) -> Specials:
        """Special tokens of the target."""
        tokenizer = self.tokenizer
        return Specials(pad=tokenizer.pad, bos=tokenizer.bos, eos=tokenizer.eos)

    def require(self, head: str) -> None:
        """Refuse a task other than filling gaps.

        Args:
            head: kind of the head that an encoder needs for the task.

        Raises:
            ModelError: for any head but `masked_lm`.
        """
        if head != "masked_lm":
            raise ModelError(f"The model has no {head} head; it fills gaps only")

    def fill(
        self, texts: Sequence[str], *, top: int = 5, **options: Unpack[EncodingOptions]
    ) -> list[list[list[Candidate]]]:
        """Return candidates for each gap; a candidate may have any number of tokens.

        A beam search finds the best targets, at least `top` of them. The probability of a candidate
        is the sum over all targets found that have it in this gap, given the text before the first
        gap. Targets that change the known text are left out, so there may be fewer candidates than
        `top`.

        Args:
            texts: texts with at least one [MASK]; an imported tokenizer's own spelling also works.
            top: number of candidates for each gap.
            **options: see `EncodingOptions`.

        Returns:
            For each text the candidates of each gap, the most probable first; `token` is the text
            that fills the gap, without white space around it.

        Raises:
            ConfigError: when `top` or a batch size is below 1.
            DataError: when a line has no gap or too many, or is too long; the line is named.
        """
        if top < 1:
            raise ConfigError("At least one candidate must be asked for", where=f"top = {top}")
        texts = list_of_texts(texts, "texts")
        beam = max(top, _NARROWEST)
        # Without a length penalty hypotheses are ranked by probability, as candidates are.
        settings = SearchSettings(beam=beam, n_best=beam, length_penalty=0)
        first = options.get("first_line", 1)
        items = {
            number: self._gapped(text, f"line {first + number}")
            for number, text in enumerate(texts)
            if text.strip()
        }
        numbers = list(items)
        plan = plan_batches(
            [len(items[number].ids) for number in numbers],
            width=beam,
            batch_tokens=options.get("batch_tokens", BATCH_TOKENS),
            batch_size=options.get("batch_size"),
        )
        results: list[list[list[Candidate]]] = [[] for _ in texts]

        def run(part: list[int]) -> list[list[Hypothesis]]:
            return self._search([items[numbers[place]] for place in part], settings)

        for part, answers in split_on_oom(plan, run):
            for number, hypotheses in zip([numbers[i] for i in part], answers, strict=True):
                results[number] = self._candidates(items[number], hypotheses, top)
        return results

    def _gapped(self, text: str, where: str) -> _Gapped:
        gaps, count = self.gaps, text.count(MASK)
        # BART has one mask for all gaps (Lewis 2020), T5 a sentinel for each (Raffel 2020).
        whole = len(gaps) == 1
        # A target of n gaps has n + 1 sentinels: the last one ends it.
        if not whole and count >= len(gaps):
            raise DataError(
                f"The model tells {len(gaps) - 1} gaps apart, and the text has {count}",
                where=where,
                remedy="Give parts of the text",
            )
        ids = self.tokenizer.encode_masked(text, MASK, gaps * count if whole else gaps[:count])
        seen = tuple(id for id in ids if id in gaps)
        if not seen:
            raise DataError(
                f"There is no {MASK} to fill", where=where, remedy=f"Write {MASK} for a gap"
            )
        # The text may hold sentinels in the tokenizer's own spelling, in any order.
        if not whole and seen != gaps[: len(seen)]:
            raise DataError(
                "The gaps are not numbered in their order",
                where=where,
                remedy=f"Write {MASK} for each gap",
            )
        frame = len(self.tokenizer.first) + len(self.tokenizer.last)
        check_fits([self.spec], ids, where, frame=frame)
        parts: list[list[int]] = [[]]
        for id in ids:
            if id in gaps:
                parts.append([])
            else:
                parts[-1].append(id)
        # Hypotheses may differ only from the first gap on, so the known beginning is forced.
        prefix = [*target_lead(self.tokenizer), *parts[0]] if whole else [gaps[0]]
        return _Gapped(ids, prefix, [tuple(part) for part in parts])

    def _search(self, items: Sequence[_Gapped], settings: SearchSettings) -> list[list[Hypothesis]]:
        source, positions = source_tensors([item.ids for item in items], self.tokenizer)
        model = self.engine
        device = model.output_weight.device
        with self.computing():
            return search(
                model,
                source.to(device),
                positions.to(device),
                settings,
                specials=self.specials,
                prefixes=[item.prefix for item in items],
                longest=longest_output([self.spec], settings),
            )

    def _candidates(
        self, item: _Gapped, hypotheses: Sequence[Hypothesis], top: int
    ) -> list[list[Candidate]]:
        results: list[dict[str, float]] = [{} for _ in item.parts[1:]]
        for hypothesis in hypotheses:
            # The probabilities of forced tokens do not depend on the fills.
            probability = math.exp(math.fsum(hypothesis.token_scores[len(item.prefix) :]))
            if len(self.gaps) == 1:
                fills = between(hypothesis.tokens[len(item.prefix) :], item.parts[1:])
            else:
                fills = after_sentinels(hypothesis.tokens, self.gaps, len(results))
            for texts, fill in zip(results, fills, strict=False):
                text = self.tokenizer.decode(fill).strip()
                # Several hypotheses may have the same text in this gap: other tokens, or other
                # fills of other gaps.
                texts[text] = texts.get(text, 0.0) + probability
        return [
            [
                Candidate(text, p)
                for text, p in sorted(texts.items(), key=lambda pair: -pair[1])[:top]
            ]
            for texts in results
        ]


def between(tokens: Fill, parts: Sequence[Fill]) -> list[Fill]:
    """Return the fills of gaps: the tokens before each of the known parts.

    Args:
        tokens: tokens of a text from its first gap on.
        parts: known tokens after each gap; the last part ends the text.

    Returns:
        A fill for each part; an empty list if the text does not contain all parts in order.
    """
    fills: list[Fill] = []
    here = 0
    for part in parts[:-1]:
        places = range(here, len(tokens) - len(part) + 1)
        # The first match, as short fills are more likely. Before an empty part, between adjacent
        # gaps, it gives an empty fill.
        place = next((i for i in places if tokens[i : i + len(part)] == part), None)
        if place is None:
            return []
        fills.append(tokens[here:place])
        here = place + len(part)
    # The last part is compared at the end only: it may also occur within the last fill.
    end = len(tokens) - len(parts[-1])
    if end < here or tokens[end:] != parts[-1]:
        return []
    return [*fills, tokens[here:end]]


def after_sentinels(tokens: Fill, sentinels: Sequence[int], count: int) -> list[Fill]:
    """Return the fills of gaps: the tokens after each sentinel, up to the next one.

    Args:
        tokens: tokens of a target.
        sentinels: all sentinels of the tokenizer, in order.
        count: number of gaps.

    Returns:
        A fill for each gap; fewer if the target skips or repeats a sentinel.
    """
    places = [i for i, id in enumerate(tokens) if id in set(sentinels)]
    fills: list[Fill] = []
    for number, place in enumerate(places[:count]):
        end = places[number + 1] if number + 1 < len(places) else len(tokens)
        around = [tokens[place], *tokens[end : end + 1]]
        # A target that skips or repeats a sentinel does not tell which gap the rest fills.
        if around != list(sentinels[number : number + len(around)]):
            break
        fills.append(tokens[place + 1 : end])
    return fills
