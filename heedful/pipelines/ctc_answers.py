"""Records that an encoder reads and answers in the order of what it reads, such as speech (CTC)."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from heedful.data.padding import source_tensors
from heedful.errors import ConfigError
from heedful.models.encoder import EncoderModel
from heedful.pipelines.batching import check_is_list, plan_batches, split_on_oom
from heedful.pipelines.record_answers import Asked, RecordPipeline
from heedful.pipelines.text_generation import BATCH_TOKENS, Generation, as_record
from heedful.pipelines.text_pipeline import checked
from heedful.search.ctc_search import BLANK, Floats, best_path, label_scores, prefix_beam
from heedful.search.search_settings import GenerationOptions, GenerationSettings


class CTCPipeline(RecordPipeline):
    """An encoder with a CTC head that completes records (Graves 2006).

    Args:
        model: encoder, perhaps with its engine.
        tokenizers: fields that are read, and fields that are written.
        **options: `precision` of `GenerationPipeline`.
    """

    kind = EncoderModel
    refusal = "This model answers no records"
    remedy = "Give a model that was trained with --task tokens and --tokens.writer ctc"

    def generate(
        self,
        prompts: Sequence[str],
        *,
        settings: GenerationSettings | None = None,
        batch_size: int | None = None,
        batch_tokens: int = BATCH_TOKENS,
        first_name: int = 0,
        **options: Unpack[GenerationOptions],
    ) -> list[Generation]:
        """Complete records by their most probable alignment, or by a beam of prefixes.

        Args:
            prompts: lines of JSON with the fields that the encoder reads.
            settings, batch_size, batch_tokens, first_name, **options: arguments of
                `RecordPipeline.generate`; of the settings only `beam` and `n_best` have a meaning.

        Returns:
            A result for each prompt, in the same order, whose text is the whole record. Its score
            is the log-probability of what was written, summed over all alignments.

        Raises:
            ConfigError: when another setting is made.
            DataError: when a prompt is no record, lacks a field that is read, or is too long.
        """
        check_is_list(prompts, "prompts")
        resolved = GenerationSettings.parse({**(settings.plain() if settings else {}), **options})
        for name, value in GenerationSettings().plain().items():
            if name not in ("beam", "n_best", "seed") and resolved.plain()[name] != value:
                raise ConfigError(
                    "CTC writes the most probable answers, and has no such setting",
                    where=name,
                    remedy="Leave it out; beam and n_best are the settings of CTC",
                )
        asked = [
            self.asked(prompt, f"record {number}", partial=True)
            for number, prompt in enumerate(prompts, start=1)
        ]
        for number, each in enumerate(asked, start=1):
            if len(each.target) > 1:
                raise ConfigError(
                    "CTC writes an answer as a whole, and cannot continue a beginning",
                    where=f"record {number}",
                    remedy=f"Give {', '.join(each.read)} alone",
                )
        found = self._log_probs(asked, batch_size, batch_tokens)
        return [
            self._answer(log_probs, each, resolved)
            for log_probs, each in zip(found, asked, strict=True)
        ]

    def token_scores(self, asked: Sequence[Asked]) -> list[tuple[float, ...]]:
        """Return the log-probability of each token of whole targets, and of the end token last."""
        found = self._log_probs(asked, len(asked), BATCH_TOKENS)
        return [
            label_scores(log_probs, [*each.target[1:], self.written.eos])
            for log_probs, each in zip(found, asked, strict=True)
        ]

    def _log_probs(
        self, asked: Sequence[Asked], batch_size: int | None, batch_tokens: int
    ) -> list[Floats]:
        """Return the log-probabilities [T, V] of labels in the frames of each record."""
        model: Any = self.engine
        results: dict[int, Floats] = {}

        def run(part: list[int]) -> list[Floats]:
            ids, positions = source_tensors([asked[number].source for number in part], self.read)
            device = model.embedding.weight.device
            ids, positions = ids.to(device), positions.to(device)
            with self.computing():
                scores, frames = model.ctc_scores(model(ids, positions), positions)
                rows = checked(scores).double().cpu().numpy()
            return [row[:count] for row, count in zip(rows, frames.tolist(), strict=True)]

        plan = plan_batches(
            [len(each.source) + 1 for each in asked],
            width=1,
            batch_tokens=batch_tokens,
            batch_size=batch_size,
        )
        for part, found in split_on_oom(plan, run):
            results.update(zip(part, found, strict=True))
        return [results[number] for number in range(len(asked))]

    @functools.cached_property
    def _fitting(self) -> npt.NDArray[np.bool_]:
        """Flags of the labels that an answer may have [V]: values, the end and the blank."""
        flags: npt.NDArray[np.bool_] = np.arange(self.written.size) == BLANK
        for first, stop in self.written.states[0].allowed:
            flags[first:stop] = True
        return flags

    def _answer(self, log_probs: Floats, asked: Asked, settings: GenerationSettings) -> Generation:
        """Return the most probable answers of one record, the best first."""
        width, eos = max(settings.beam, settings.n_best), self.written.eos
        # The most probable alignment is greedy search: each frame chooses for itself.
        fits = np.where(self._fitting, log_probs, -np.inf)
        texts = (
            [each.labels for each in prefix_beam(fits, width)] if width > 1 else [best_path(fits)]
        )
        # What follows an end is no part of an answer: no record of training had it.
        answers = dict.fromkeys(tuple(takewhile(lambda id: id != eos, each)) for each in texts)
        made = []
        for tokens in answers:
            scores = label_scores(log_probs, [*tokens, eos])
            score = math.fsum(scores)
            made.append(Generation(tokens, "", score, score, scores[:-1], "end"))
        made.sort(key=lambda each: -each.score)
        best = replace(made[0], others=tuple(made[1 : settings.n_best]))
        return self._whole(as_record(best, self.written, asked.target), asked)
