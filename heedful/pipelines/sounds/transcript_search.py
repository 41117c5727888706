"""The search for transcripts: tokens that begin them, and tokens that they never have."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from heedful.errors import ConfigError, suggest
from heedful.models.sounds.transcriber_spec import PromptSpec, TranscriberSpec
from heedful.models.translator import EncoderDecoder, TranslatorState
from heedful.pipelines.record_answers import Answering
from heedful.search.dispatch import search
from heedful.search.grammar import RuledModel
from heedful.search.search_settings import GenerationSettings, Hypothesis
from heedful.search.step_model import Continuation


class Suppression:
    """`TokenRules` that leave out some tokens, and others at the beginning of a transcript.

    Args:
        prompt: the tokens that are left out.
        length: number of tokens before a transcript.
        vocabulary: vocabulary size V.
        device: device of the search.
    """

    def __init__(
        self, prompt: PromptSpec, length: int, vocabulary: int, device: torch.device
    ) -> None:
        self._length = length
        left_out = torch.zeros(2, vocabulary, dtype=torch.bool)
        left_out[:, list(prompt.suppressed)] = True
        left_out[0, list(prompt.suppressed_first)] = True
        self._left_out = left_out.to(device)

    def after(self, places: Tensor, tokens: Tensor) -> Tensor:
        """Return the number of tokens of sequences [...] that had `places` and get one more."""
        return places + 1

    def apply(self, logits: Tensor, places: Tensor) -> Tensor:
        """Return logits [B, W, V] with −∞ for tokens that are left out at places [B, W]."""
        return logits.masked_fill(self._left_out[(places > self._length).long()], -math.inf)


class TranscriptSearch:
    """The search for the transcripts of sounds that an encoder has read.

    Args:
        spec: spec of the model, with a prompt.
        language: code of the language that is spoken; the model's default if unset.
        task: transcribe or translate; the model's default if unset.
        end: token that ends a transcript.

    Raises:
        ConfigError: when the model does not know the language or the task.
    """

    def __init__(
        self, spec: TranscriberSpec, language: str | None, task: str | None, end: int
    ) -> None:
        assert spec.prompt is not None
        self.prompt = spec.prompt
        self.vocabulary = spec.vocabulary
        self.end = end
        self.before = _beginning(spec.prompt, language, task)

    def __call__(
        self, model: EncoderDecoder, frames: Tensor, settings: GenerationSettings, names: list[int]
    ) -> list[list[Hypothesis]]:
        """Return the hypotheses of each sound, the best first.

        Args:
            model: model of sounds.
            frames: [B, F, bands].
            settings: settings of the search, with a maximum length.
            names: key of each sound in the generator of random numbers.
        """
        device = frames.device
        states = torch.arange(frames.shape[1] // 2, device=device).expand(len(frames), -1)
        begun = model.start(frames, states)
        before = self._before(model, begun, len(frames), device)
        places = torch.arange(before.shape[1], device=device).expand(before.shape)
        rules = Suppression(self.prompt, before.shape[1], self.vocabulary, device)
        limit = settings.max_length
        assert limit is not None
        continuation: Continuation[Any] = Continuation(
            RuledModel(Answering(model, begun), rules),
            vocabulary=self.vocabulary,
            ends=(self.end,),
            limit=limit,
        )
        specials = continuation.specials
        return search(continuation, before, places, settings, specials=specials, names=names)

    def _before(
        self, model: EncoderDecoder, begun: TranslatorState, count: int, device: torch.device
    ) -> Tensor:
        """Return the tokens before the transcripts of B sounds [B, P]."""
        columns = []
        for token in self.before:
            if token is not None:
                columns.append(torch.full((count, 1), token, device=device))
                continue
            # The likeliest of all languages after the first token, as in the paper (section 2.3).
            known = torch.tensor([id for _, id in self.prompt.languages], device=device)
            logits, _ = model.step(begun, columns[0])
            columns.append(known[logits[..., known].argmax(-1)])
        return torch.cat(columns, 1)


def _beginning(prompt: PromptSpec, language: str | None, task: str | None) -> list[int | None]:
    """Return the tokens before a transcript; None in the place of a language to be recognized."""
    tokens: list[int | None] = [prompt.start]
    languages, tasks = dict(prompt.languages), dict(prompt.tasks)
    usual = prompt.task or ("transcribe" if "transcribe" in tasks else None)
    for name, asked, default, known in (
        ("language", language, prompt.language, languages),
        ("task", task, usual, tasks),
    ):
        if asked is not None and asked not in known:
            raise ConfigError(
                f"The model knows no such {name}",
                where=f"{name} = {asked}",
                remedy=suggest(asked, known) or "Leave it out: the model has learned a single one",
            )
        if known and (name == "language" or asked or default):
            chosen = asked or default
            tokens.append(None if chosen is None else known[chosen])
    if prompt.without_times is not None:
        tokens.append(prompt.without_times)
    return tokens
