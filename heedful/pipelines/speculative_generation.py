"""Speculative decoding (Leviathan 2023): a draft is cheap, and one pass checks all its tokens.

The draft comes from a small model, or from earlier tokens that followed the same n-gram (prompt
lookup, Saxena 2023). The tokens are those of greedy search: a draft's token counts only where the
model itself would write it, and the cache forgets the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from heedful.errors import ConfigError, ModelError
from heedful.models.causal_lm import CausalLM, CausalLMState
from heedful.nn.attention.beam_cache import BeamCache
from heedful.pipelines.streamed_text import RunningText
from heedful.pipelines.text_generation import (
    Generation,
    GenerationPipeline,
    assembled,
)
from heedful.search.search_settings import GenerationSettings, Hypothesis, length_norm
from heedful.search.step_model import end_merged, log_probabilities
from heedful.text.field_tokenizer import FieldTokenizer, prompt_ids

DRAFT_TOKENS = 5
"""Tokens of a draft if no number is set; Leviathan (2023) find 3 to 7 best."""

_OPEN = {"max_length", "min_length", "stop", "cache", "seed", "length_penalty"}
"""Settings that greedy search by drafts has, or that change nothing in it."""


class Drafter(Protocol):
    """A guess of the next tokens."""

    def draft(self, ids: Sequence[int], count: int) -> list[int]:
        """Return up to `count` tokens that may follow the ids, which grow from call to call."""


@dataclass
class Speculation:
    """Numbers of a run.

    Args:
        drafted: tokens of all drafts.
        accepted: tokens of drafts that the model wrote as well.
        passes: passes of the model after the prompts.
    """

    drafted: int = 0
    accepted: int = 0
    passes: int = 0

    @property
    def acceptance(self) -> float:
        """Share of accepted tokens among all of the drafts."""
        return self.accepted / max(self.drafted, 1)


class PromptLookup:
    """A `Drafter` that repeats what followed the last n-gram where it stood before.

    Args:
        size: most tokens of an n-gram; shorter ones are looked up if it is new.
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ConfigError("An n-gram has at least one token", where=f"lookup = {size}")
        self.size = size

    def draft(self, ids: Sequence[int], count: int) -> list[int]:
        for size in range(min(self.size, len(ids) - 1), 0, -1):
            last = ids[-size:]
            # The latest occurrence: a text repeats its present topic.
            for start in range(len(ids) - size - 1, -1, -1):
                if ids[start : start + size] == last:
                    # The draft may run into itself: a text in a loop is drafted to the full length.
                    text = list(ids)
                    for place in range(start + size, start + size + count):
                        text.append(text[place])
                    return text[len(ids) :]
        return []


class RewindableModel:
    """A language model that reads several tokens in one pass, and forgets its last ones.

    Args:
        model: model in evaluation mode.

    Raises:
        ModelError: when a layer keeps a state that cannot be taken back.
    """

    def __init__(self, model: CausalLM) -> None:
        self.model = model
        self.ids: list[int] = []
        device = model.output_weight.device
        nothing = torch.zeros((1, 0), dtype=torch.int64, device=device)
        self._state: CausalLMState = model.start(nothing, nothing)
        for number, (block, states) in enumerate(
            zip(model.spec.decoder.blocks, self._state.decoder.blocks, strict=True)
        ):
            for layer, state in zip(block.sublayers, states, strict=True):
                if state is not None and not isinstance(state, BeamCache):
                    raise ModelError(
                        f"Layer {layer.part.kind} keeps a state that cannot be taken back, as "
                        "drafts that are not accepted demand",
                        where=f"decoder.{number}.{layer.name}",
                        remedy="Write without --draft and --lookup",
                    )

    @property
    def room(self) -> int | None:
        """Tokens that the table of positions still holds; None without a table."""
        table = self.model.spec.embedding.positions.max_length
        return None if table is None else table - len(self.ids)

    def read(self, ids: Sequence[int]) -> Tensor:
        """Read more tokens and return the logits [n, V] float32 after each of them."""
        device = self.model.output_weight.device
        first = len(self.ids)
        positions = torch.arange(first, first + len(ids), device=device)[None]
        tokens = torch.tensor([list(ids)], dtype=torch.int64, device=device)
        hidden, self._state = self.model.extend(self._state, tokens, positions)
        self.ids += ids
        return self.model.logits(hidden)[0].float()

    def forget(self, count: int) -> None:
        """Take back the last `count` tokens."""
        if count:
            decoder = self._state.decoder.without_last(count)
            self._state = CausalLMState(decoder, self._state.next_positions)
            del self.ids[-count:]


class DraftModel:
    """A `Drafter` that writes greedily with a small model.

    Args:
        model: model of the same vocabulary.
        end: id of the end token, which is never drafted.
    """

    def __init__(self, model: CausalLM, end: int) -> None:
        self._reader, self._end = RewindableModel(model), end

    def draft(self, ids: Sequence[int], count: int) -> list[int]:
        reader = self._reader
        same = 0
        # At least one token is read again, for the logits after it.
        for one, other in zip(reader.ids, ids[:-1], strict=False):
            if one != other:
                break
            same += 1
        reader.forget(len(reader.ids) - same)
        if reader.room is not None:
            count = min(count, reader.room - (len(ids) - same) + 1)
        drafted: list[int] = []
        unread = list(ids[same:])
        while len(drafted) < count:
            logits = reader.read(unread)[-1]
            # Nothing follows an end, and before the shortest length it would be refused.
            logits[self._end] = -torch.inf
            drafted.append(int(logits.argmax()))
            unread = drafted[-1:]
        return drafted


def speculate(
    pipeline: GenerationPipeline,
    prompts: Sequence[str],
    *,
    settings: GenerationSettings | None = None,
    draft: GenerationPipeline | None = None,
    lookup: int | None = None,
    draft_tokens: int = DRAFT_TOKENS,
) -> tuple[list[Generation], Speculation]:
    """Continue prompts one by one with the tokens of greedy search, in fewer passes.

    A pass over several tokens may round otherwise than a pass over one: where two tokens are
    equally probable to the last digits of float32, the other may be written.

    Args:
        pipeline: language model that decides.
        prompts: beginnings of texts.
        settings: settings of the search, which is greedy.
        draft: small model of the same vocabulary; or else
        lookup: most tokens of the n-grams that are looked up in the prompt and the text so far.
        draft_tokens: most tokens of a draft.

    Returns:
        A continuation for each prompt, and the numbers of the run.

    Raises:
        ConfigError: when a setting asks for more than greedy search, or there is no draft or two.
        ModelError: when a layer cannot take tokens back, the vocabularies differ, or a prompt and
            its continuation are too long.
    """
    settings = settings or GenerationSettings()
    _check(pipeline, settings, draft, lookup, draft_tokens)
    numbers, found = Speculation(), []
    begun = [prompt_ids(pipeline.tokenizer, prompt) for prompt in prompts]
    pipeline.notice_length(*map(len, begun))
    for ids in begun:
        with pipeline.computing():
            target = RewindableModel(pipeline.engine)
            drafter: Drafter
            if draft is not None:
                drafter = DraftModel(draft.engine, draft.tokenizer.eos)
            else:
                assert lookup is not None
                drafter = PromptLookup(lookup)
            limited = _limited(settings, target, ids)
            text = RunningText(pipeline.tokenizer, ids, limited.stop)
            run = _Run(target, drafter, pipeline.tokenizer.eos, limited, text, numbers)
            found.append(run.write(ids, draft_tokens))
    pipeline.notice_written(begun, found)
    return found, numbers


@dataclass
class _Run:
    """The writing of one continuation."""

    target: RewindableModel
    drafter: Drafter
    end: int
    settings: GenerationSettings
    text: RunningText
    numbers: Speculation

    def write(self, prompt: list[int], draft_tokens: int) -> Generation:
        """Return the continuation of a prompt."""
        limit = self.settings.max_length
        assert limit is not None
        if len(prompt) > 1:
            self.target.read(prompt[:-1])
        tokens: list[int] = []
        scores: list[float] = []
        ended = False
        while not ended and len(tokens) < limit:
            # The last token of a full draft is followed by one of the model's own.
            count = min(draft_tokens, limit - len(tokens) - 1)
            context = [*prompt, *tokens]
            drafted = self.drafter.draft(context, count) if count else []
            logits = self.target.read([context[-1], *drafted])
            before = len(tokens)
            ended = self._accept(logits, drafted, tokens, scores)
            new = len(tokens) - before
            self.numbers.passes += 1
            self.numbers.drafted += len(drafted)
            self.numbers.accepted += min(new, len(drafted)) if ended else new - 1
            # Read are the token before and the draft; the newest token is not read yet.
            self.target.forget(1 + len(drafted) - max(new, 1))
        if len(scores) == len(tokens):
            scores.append(0.0)  # cut: the end is certain
        score = sum(scores)
        norm = length_norm(float(len(scores)), self.settings.length_penalty)
        best = Hypothesis(tuple(tokens), score, score / norm, tuple(scores), finished=True)
        return assembled([best], self.text, limit)

    def _accept(
        self, logits: Tensor, drafted: Sequence[int], tokens: list[int], scores: list[float]
    ) -> bool:
        """Add the model's own tokens as far as the draft agrees; return whether the text ends."""
        vocabulary = logits.shape[-1]
        merged = end_merged(logits, torch.tensor([self.end], device=logits.device))
        early = max(0, self.settings.min_length - len(tokens))
        known = log_probabilities(merged.clone())
        merged[:early, vocabulary] = -torch.inf
        best = merged.argmax(-1)
        chosen = known.gather(1, best[:, None])[:, 0].tolist()
        # Beyond the draft any token is the model's own.
        for token, score, guess in zip(best.tolist(), chosen, [*drafted, None], strict=True):
            scores.append(score)
            if token == vocabulary:
                return True
            tokens.append(token)
            if self.settings.stop and self.text.stopped(tokens):
                return True
            if token != guess:
                return False
        return False


def _limited(
    settings: GenerationSettings, target: RewindableModel, ids: Sequence[int]
) -> GenerationSettings:
    room = target.room
    left = None if room is None else max(room - len(ids), 0)
    if left is not None and (settings.max_length or 1) > left:
        raise ModelError(
            f"{len(ids)} tokens and {settings.max_length or 1} new ones are more than the {room} "
            "positions the model has learned",
            remedy=f"Ask for at most {left} new tokens" if left else "Give a shorter prompt",
        )
    return settings.limited(left)


def _check(
    pipeline: GenerationPipeline,
    settings: GenerationSettings,
    draft: GenerationPipeline | None,
    lookup: int | None,
    draft_tokens: int,
) -> None:
    if isinstance(pipeline.tokenizer, FieldTokenizer):
        raise ModelError("Drafts are texts, and this model writes records", where="draft, lookup")
    plain = GenerationSettings().plain()
    for name, value in settings.plain().items():
        if name not in _OPEN and value != plain[name]:
            raise ConfigError(
                "Drafts are checked against greedy search, which has no such setting",
                where=name,
                remedy="Leave it out, or write without --draft and --lookup",
            )
    if (draft is None) == (lookup is None):
        raise ConfigError("Give a draft model or a lookup, one of them", where="draft, lookup")
    if draft_tokens < 1:
        raise ConfigError("A draft has at least one token", where=f"draft_tokens = {draft_tokens}")
    if draft is None:
        return
    # Ids are compared, so that a vocabulary of other texts would only slow the model down.
    if draft.tokenizer.fingerprint != pipeline.tokenizer.fingerprint:
        raise ModelError(
            "The draft model has another vocabulary",
            where=draft.name or "draft",
            remedy="Train it on the text of the large model, with the same tokenizer settings",
        )
