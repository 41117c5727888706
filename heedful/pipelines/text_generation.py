"""Continuations of prompts by a causal language model, at once or as a stream."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Literal, Unpack

from torch import Tensor

from heedful.data.batches import pad
from heedful.errors import ConfigError, DataError, ModelError
from heedful.models.causal_lm import CausalLM, CausalLMState
from heedful.pipelines.batching import plan_batches, split_on_oom
from heedful.pipelines.streamed_text import RunningText, TokenDecoder
from heedful.pipelines.text_pipeline import TextPipeline
from heedful.search.dispatch import search, stream_tokens
from heedful.search.search_settings import (
    GenerationOptions,
    GenerationSettings,
    Hypothesis,
    check_width,
)
from heedful.search.step_model import Continuation, Stopped
from heedful.text.tokenizer import TextTokenizer, Tokenizer

BATCH_TOKENS = 16_384
"""Positions of a batch: prompts × longest, new tokens counted, × continuations."""

Ended = Literal["end", "stop", "length"]
"""By the model's end token, at a stop string, or at the longest length."""


@dataclass(frozen=True)
class Generation:
    """A continuation of a prompt.

    Args:
        tokens: new ids; where a stop string ended the text, those it is made of among them.
        text: what they say after the prompt, up to the first stop string; "" without a tokenizer.
        score: natural-log probability, summed over the tokens and, where the model ended, its end.
        normalized_score: what continuations are ranked by.
        token_scores: of each token.
        ended: the reason of its end.
        others: the next-best continuations, or other samples.
    """

    tokens: tuple[int, ...]
    text: str
    score: float
    normalized_score: float
    token_scores: tuple[float, ...]
    ended: Ended
    others: tuple[Generation, ...] = ()

    @property
    def n_best(self) -> tuple[Generation, ...]:
        """This continuation and the others, best first."""
        return (self, *self.others)


def generate(
    model: CausalLM,
    prompts: Sequence[Sequence[int]],
    tokenizer: TokenDecoder | None = None,
    *,
    ends: Sequence[int] = (),
    settings: GenerationSettings | None = None,
    batch_tokens: int = BATCH_TOKENS,
    batch_size: int | None = None,
    first_name: int = 0,
    **options: Unpack[GenerationOptions],
) -> list[Generation]:
    """Continue prompts: one continuation for each, in their order.

    How prompts are batched changes no result.

    Args:
        model: put into evaluation mode while it works.
        prompts: ids of each, at least one, with every special token the model wants.
        tokenizer: gives the text of continuations; stop strings need it.
        ends: ids that end a text. They are not part of it.
        settings: of the search; defaults if unset.
        batch_tokens: positions continued together: prompts × longest × continuations.
        batch_size: prompts continued together, instead of `batch_tokens`.
        first_name: number of the first prompt, which its random draws depend on.
        **options: fields of `GenerationSettings` that override `settings`.

    Raises:
        ConfigError: when settings contradict each other or the model.
        DataError: when a prompt is empty or holds an id the model does not know.
        ModelError: when the model has learned positions, and too few for a prompt and what is to
            follow it; before anything is computed.
    """
    settings = _resolve(settings, options)
    _check(model, prompts, tokenizer, ends, settings)
    batches = plan_batches(
        [len(prompt) + settings.max_length for prompt in prompts],
        width=settings.n_best if settings.sampling else settings.beam,
        batch_tokens=batch_tokens,
        batch_size=batch_size,
    )
    results: dict[int, Generation] = {}

    def run(part: list[int]) -> list[Generation]:
        chosen = [prompts[i] for i in part]
        texts = [_running_text(prompt, tokenizer, settings) for prompt in chosen]
        continuation = _continuation(model, chosen, texts, ends, settings)
        hypotheses = search(
            continuation,
            *_tensors(chosen, model),
            settings,
            specials=continuation.specials,
            names=[first_name + i for i in part],
        )
        return [
            _assemble(best, text, continuation.limit)
            for best, text in zip(hypotheses, texts, strict=True)
        ]

    with _evaluating(model):
        for part, generations in split_on_oom(batches, run):
            results.update(zip(part, generations, strict=True))
    return [results[i] for i in range(len(prompts))]


def stream(
    model: CausalLM,
    prompt: Sequence[int],
    tokenizer: TokenDecoder,
    *,
    ends: Sequence[int] = (),
    settings: GenerationSettings | None = None,
    name: int = 0,
    within: Callable[[], AbstractContextManager[object]] = nullcontext,
    **options: Unpack[GenerationOptions],
) -> TextStream:
    """Continue a prompt, giving text as soon as it is certain.

    The pieces together are the text that `generate` gives. None ends inside a character, and none
    holds the beginning of a stop string.

    Args:
        model, tokenizer, ends, settings, **options: as for `generate`.
        prompt: ids.
        name: the prompt's number, which its random draws depend on.
        within: a further context that each token is computed in.

    Raises:
        ConfigError, DataError, ModelError: as `generate` does, and for a beam or several samples.
    """
    settings = _resolve(settings, options)
    if settings.n_best > 1 or (settings.beam > 1 and not settings.sampling):
        raise ConfigError(
            "Only one continuation can be streamed: a beam changes its mind until the end",
            where=f"beam = {settings.beam}, n_best = {settings.n_best}",
            remedy="Stream with beam = 1 and n_best = 1",
        )
    _check(model, [prompt], tokenizer, ends, settings)
    text = RunningText(tokenizer, prompt, settings.stop)
    continuation = _continuation(model, [prompt], [text], ends, settings)
    drawn = stream_tokens(
        continuation,
        *_tensors([prompt], model),
        settings,
        specials=continuation.specials,
        name=name,
        limit=continuation.limit,
    )

    @contextmanager
    def computing() -> Iterator[None]:
        with _evaluating(model), within():
            yield

    return TextStream(drawn, text, continuation.limit, computing)


class TextStream(Iterator[str]):
    """The text of a continuation, a piece as soon as it is certain.

    Args:
        drawn: its tokens, computed as they are asked for.
        text: of the tokens.
        limit: most tokens.
        within: the context that each token is computed in.

    Attributes:
        tokens: ids so far.
    """

    def __init__(
        self,
        drawn: Generator[int, None, None],
        text: RunningText,
        limit: int,
        within: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self.tokens: list[int] = []
        self._drawn = drawn
        self._text = text
        self._limit = limit
        self._within = within
        self._shown = 0

    def __next__(self) -> str:
        """Return the next piece."""
        with self._within():  # not while whoever reads the pieces is at work
            for token in self._drawn:
                self.tokens.append(token)
                if piece := self._new(self._text.ready(self.tokens)):
                    return piece
        if piece := self._new(self._text.text(self.tokens)):
            return piece
        raise StopIteration

    def close(self) -> None:
        """Compute no further tokens."""
        self._drawn.close()

    @property
    def ended(self) -> Ended:
        """The reason of its end, once it has ended."""
        return _reason(self.tokens, self._text, self._limit)

    def _new(self, text: str) -> str:
        piece, self._shown = text[self._shown :], max(self._shown, len(text))
        return piece


def _continuation(
    model: CausalLM,
    prompts: Sequence[Sequence[int]],
    texts: Sequence[RunningText | None],
    ends: Sequence[int],
    settings: GenerationSettings,
) -> Continuation[CausalLMState]:
    def stopped(row: int, ids: Sequence[int]) -> bool:
        text = texts[row]
        return text is not None and text.stopped(ids)

    limit = settings.max_length
    rule: Stopped | None = stopped if settings.stop else None
    return Continuation(
        model.with_cache(settings.cache, max(map(len, prompts)) + limit),
        vocabulary=model.spec.vocabulary,
        ends=ends,
        limit=limit,
        stopped=rule,
    )


def _resolve(settings: GenerationSettings | None, options: GenerationOptions) -> GenerationSettings:
    return GenerationSettings.parse({**(settings.plain() if settings else {}), **options})


def _check(
    model: CausalLM,
    prompts: Sequence[Sequence[int]],
    tokenizer: TokenDecoder | None,
    ends: Sequence[int],
    settings: GenerationSettings,
) -> None:
    """Refuse what cannot be done, before anything is computed."""
    check_width([model.spec], settings)
    if settings.stop and tokenizer is None:
        raise ConfigError("Stop strings need the tokenizer", where="stop")
    if settings.cache == "ring" and model.window is None:
        raise ConfigError(
            "A ring cache needs a model with a window: this one sees everything before a token",
            where="cache = ring",
            remedy="Use the growing or the static cache",
        )
    if settings.coverage_penalty:
        raise ConfigError("A prompt is no source to be covered", where="coverage_penalty")
    vocabulary = model.spec.vocabulary
    assert all(0 <= end < vocabulary for end in ends), ends
    table = model.spec.embedding.positions.max_length
    for number, prompt in enumerate(prompts, start=1):
        where = f"prompt {number}"
        if not prompt:
            raise DataError(
                "The prompt has no tokens", where=where, remedy="Begin with the model's begin token"
            )
        if (wrong := max(prompt)) >= vocabulary or (wrong := min(prompt)) < 0:
            raise DataError(
                f"The model has no token {wrong}: its vocabulary has {vocabulary}",
                where=where,
                remedy="Use the tokenizer of this model",
            )
        total = len(prompt) + settings.max_length
        if table is not None and total > table:
            room = max(table - len(prompt), 0)
            raise ModelError(
                f"{len(prompt)} tokens and {settings.max_length} new ones are more than the "
                f"{table} positions the model has learned",
                where=where,
                remedy=f"Ask for at most {room} new tokens"
                if room
                else f"Give a prompt of less than {table} tokens",
            )


def _tensors(prompts: Sequence[Sequence[int]], model: CausalLM) -> tuple[Tensor, Tensor]:
    ids, positions = pad([list(prompt) for prompt in prompts], 0)
    device = model.output_weight.device
    return ids.to(device), positions.to(device)


def _running_text(
    prompt: Sequence[int], tokenizer: TokenDecoder | None, settings: GenerationSettings
) -> RunningText | None:
    return None if tokenizer is None else RunningText(tokenizer, prompt, settings.stop)


def _assemble(hypotheses: Sequence[Hypothesis], text: RunningText | None, limit: int) -> Generation:
    results = [_generation(hypothesis, text, limit) for hypothesis in hypotheses]
    return replace(results[0], others=tuple(results[1:]))


def _generation(hypothesis: Hypothesis, text: RunningText | None, limit: int) -> Generation:
    tokens = hypothesis.tokens
    return Generation(
        tokens=tokens,
        text="" if text is None else text.text(tokens),
        score=hypothesis.score,
        normalized_score=hypothesis.normalized_score,
        token_scores=hypothesis.token_scores[: len(tokens)],
        ended=_reason(tokens, text, limit),
    )


def _reason(tokens: Sequence[int], text: RunningText | None, limit: int) -> Ended:
    if text is not None and text.stopped(tokens):
        return "stop"
    return "length" if len(tokens) == limit else "end"


@contextmanager
def _evaluating(model: CausalLM) -> Iterator[None]:
    """Evaluation mode, and as before afterwards."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


class GenerationPipeline(TextPipeline[CausalLM]):
    """A continuer of raw text."""

    kind = CausalLM
    refusal = "This model continues no text"
    remedy = "Give a language model, such as one trained with --task causal_lm"

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
        """Continue prompts: one continuation for each, in their order.

        Args:
            prompts: the beginnings of texts; an empty one begins a text.
            settings: of the search; defaults if unset.
            batch_size: prompts continued together, instead of `batch_tokens`.
            batch_tokens: positions continued together: prompts × longest × continuations.
            first_name: number of the first prompt, which its random draws depend on.
            **options: fields of `GenerationSettings` that override `settings`.

        Raises:
            ConfigError: when settings contradict each other or the model.
            ModelError: when a prompt and what is to follow it are too long for the model.
            DataError: when a prompt is not Unicode text.
        """
        with self.computing():
            return generate(
                self.model,
                [prompt_ids(self.tokenizer, prompt) for prompt in prompts],
                self.tokenizer,
                ends=(self.tokenizer.eos,),
                settings=settings,
                batch_size=batch_size,
                batch_tokens=batch_tokens,
                first_name=first_name,
                **options,
            )

    def stream(
        self,
        prompt: str,
        *,
        settings: GenerationSettings | None = None,
        **options: Unpack[GenerationOptions],
    ) -> TextStream:
        """Continue one prompt, giving text as soon as it is certain; arguments as `generate`."""
        return stream(
            self.model,
            prompt_ids(self.tokenizer, prompt),
            self.tokenizer,
            ends=(self.tokenizer.eos,),
            settings=settings,
            within=self.computing,
            **options,
        )


def prompt_ids(tokenizer: TextTokenizer, prompt: str) -> list[int]:
    """A prompt's ids, at least one, as a language model's texts begin in training."""
    first = (tokenizer.bos,) if isinstance(tokenizer, Tokenizer) else tokenizer.first
    return [*first, *tokenizer.encode(prompt)] or [tokenizer.bos]
