"""Raw text with gaps in, what may stand there out: T5, BART and their kin with a tokenizer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Unpack

import torch

from heedful.data.batches import source_tensors
from heedful.data.corruption import gap_tokens, target_lead
from heedful.device import Precision
from heedful.errors import ConfigError, DataError, ModelError
from heedful.models.translator import Translator
from heedful.pipelines.batching import plan_batches, split_on_oom
from heedful.pipelines.encoder_input import BATCH_TOKENS
from heedful.pipelines.predictions import Candidate
from heedful.pipelines.text_encoding import MASK, EncodingOptions
from heedful.search.dispatch import search
from heedful.search.search_settings import (
    Hypothesis,
    SearchSettings,
    Specials,
    check_fits,
    longest_output,
)
from heedful.text.tokenizer import TextTokenizer

_NARROWEST = 4
"""Hypotheses that are searched for at least; with fewer the best is often missed."""

Fill = tuple[int, ...]


@dataclass(frozen=True)
class _Gapped:
    """A text with gaps.

    Args:
        ids: of the source, without special tokens around them.
        prefix: how its target must begin.
        parts: the known ids before, between and after the gaps, where the target says them all.
    """

    ids: list[int]
    prefix: list[int]
    parts: list[Fill]


class GapPipeline:
    """An encoder-decoder that writes what is missing from texts.

    With one mask for all gaps the decoder writes the whole text, and what stands between the known
    parts is read from it. With a sentinel for each gap it writes what is missing alone.

    Args:
        model: the encoder-decoder, in eval mode.
        tokenizer: of source and target; it has tokens for gaps.
        precision: of the forward passes; float32 if unset.
    """

    def __init__(
        self, model: Translator, tokenizer: TextTokenizer, *, precision: Precision | None = None
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.precision = precision
        self.gaps = gap_tokens(tokenizer)
        assert self.gaps
        self.specials = Specials(pad=tokenizer.pad, bos=tokenizer.bos, eos=tokenizer.eos)

    def require(self, head: str) -> None:
        """Refuse what the model cannot do.

        Raises:
            ModelError: for anything but `masked_lm`.
        """
        if head != "masked_lm":
            raise ModelError(f"The model has no {head} head; it fills gaps only")

    def fill(
        self, texts: Sequence[str], *, top: int = 5, **options: Unpack[EncodingOptions]
    ) -> list[list[list[Candidate]]]:
        """Candidates for each gap, of any number of tokens.

        The real decoder is searched for the best answers, at least `top` of them. A candidate's
        probability is that of all answers found that have it in this gap, the text before the
        first gap taken for granted. Answers that change the known text are left out, so there may
        be fewer candidates than asked for.

        Args:
            texts: with at least one [MASK] each; an imported tokenizer's own spelling also works.
            top: candidates for each gap.
            **options: see `EncodingOptions`.

        Returns:
            For each text, for each gap in its order, candidates, the most probable first; `token`
            is the text that fills the gap, without white space around it.

        Raises:
            ConfigError: when no candidates are asked for.
            DataError: naming the line that has no gap, too many, or is too long.
        """
        if top < 1:
            raise ConfigError("At least one candidate must be asked for", where=f"top = {top}")
        for name in ("batch_size", "batch_tokens"):
            size = options.get(name)
            if isinstance(size, int) and size < 1:
                raise ConfigError("A batch holds at least 1", where=f"{name} = {size}")
        beam = max(top, _NARROWEST)
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
        whole = len(gaps) == 1
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
        if not whole and seen != gaps[: len(seen)]:
            raise DataError(
                "The gaps are not numbered in their order",
                where=where,
                remedy=f"Write {MASK} for each gap",
            )
        frame = len(self.tokenizer.first) + len(self.tokenizer.last)
        check_fits([self.model.spec], ids, where, frame=frame)
        parts: list[list[int]] = [[]]
        for id in ids:
            if id in gaps:
                parts.append([])
            else:
                parts[-1].append(id)
        prefix = [*target_lead(self.tokenizer), *parts[0]] if whole else [gaps[0]]
        return _Gapped(ids, prefix, [tuple(part) for part in parts])

    def _search(self, items: Sequence[_Gapped], settings: SearchSettings) -> list[list[Hypothesis]]:
        source, positions = source_tensors([item.ids for item in items], self.tokenizer)
        device = self.model.output_weight.device
        with torch.inference_mode(), self.precision.autocast() if self.precision else nullcontext():
            return search(
                self.model,
                source.to(device),
                positions.to(device),
                settings,
                specials=self.specials,
                prefixes=[item.prefix for item in items],
                longest=longest_output([self.model.spec], settings),
            )

    def _candidates(
        self, item: _Gapped, hypotheses: Sequence[Hypothesis], top: int
    ) -> list[list[Candidate]]:
        results: list[dict[str, float]] = [{} for _ in item.parts[1:]]
        for hypothesis in hypotheses:
            probability = math.exp(math.fsum(hypothesis.token_scores[len(item.prefix) :]))
            if len(self.gaps) == 1:
                fills = between(hypothesis.tokens[len(item.prefix) :], item.parts[1:])
            else:
                fills = after_sentinels(hypothesis.tokens, self.gaps, len(results))
            for texts, fill in zip(results, fills, strict=False):
                text = self.tokenizer.decode(fill).strip()
                texts[text] = texts.get(text, 0.0) + probability
        return [
            [
                Candidate(text, p)
                for text, p in sorted(texts.items(), key=lambda pair: -pair[1])[:top]
            ]
            for texts in results
        ]


def between(tokens: Fill, parts: Sequence[Fill]) -> list[Fill]:
    """The tokens before each of the known parts.

    Args:
        tokens: a text from its first gap on.
        parts: what follows each gap; the last one ends the text.

    Returns:
        A fill for each part; none at all where the text does not say the parts.
    """
    fills: list[Fill] = []
    here = 0
    for part in parts[:-1]:
        places = range(here, len(tokens) - len(part) + 1)
        place = next((i for i in places if tokens[i : i + len(part)] == part), None)
        if place is None:
            return []
        fills.append(tokens[here:place])
        here = place + len(part)
    end = len(tokens) - len(parts[-1])
    if end < here or tokens[end:] != parts[-1]:
        return []
    return [*fills, tokens[here:end]]


def after_sentinels(tokens: Fill, sentinels: Sequence[int], count: int) -> list[Fill]:
    """The tokens after each of the first sentinels, up to the next one.

    Args:
        tokens: a target.
        sentinels: all there are.
        count: of gaps.

    Returns:
        A fill for each gap, up to the first that another sentinel than the next one ends.
    """
    places = [i for i, id in enumerate(tokens) if id in set(sentinels)]
    fills: list[Fill] = []
    for number, place in enumerate(places[:count]):
        end = places[number + 1] if number + 1 < len(places) else len(tokens)
        around = [tokens[place], *tokens[end : end + 1]]
        if around != list(sentinels[number : number + len(around)]):
            break
        fills.append(tokens[place + 1 : end])
    return fills
