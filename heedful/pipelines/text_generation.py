"""Continuation of prompts by a causal language model, in batches or as a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Unpack

from torch import Tensor

from heedful.data.padding import pad
from heedful.errors import ConfigError, DataError, ModelError
from heedful.models.causal_lm import CausalLM
from heedful.pipelines.batching import list_of_texts, plan_batches, split_on_oom
from heedful.pipelines.streamed_text import (
    Ended,
    RunningText,
    TokenDecoder,
    reason_of_end,
)
from heedful.pipelines.streamed_text import (
    TextStream as TextStream,
)
from heedful.pipelines.text_pipeline import PrefixCache, PrefixReader, TextPipeline
from heedful.search.dispatch import search, stream_tokens
from heedful.search.search_settings import (
    NEW_TOKENS,
    GenerationOptions,
    GenerationSettings,
    Hypothesis,
    check_width,
)
from heedful.search.step_model import Continuation, StepModel, Stopped
from heedful.text.field_tokenizer import FieldTokenizer, prompt_ids

BATCH_TOKENS = 16_384
"""Default number of positions of a batch: prompts × longest, with new tokens, × continuations."""


@dataclass(frozen=True)
class Generation:
    """A continuation of a prompt.

    Args:
        tokens: ids of the new tokens, including those of a stop string.
        text: text after the prompt, up to the first stop string; "" without a tokenizer.
        score: natural-log probability, summed over the tokens and, if there is one, the end token.
        normalized_score: score that ranks continuations.
        token_scores: log-probability of each token.
        ended: reason of the text's end.
        others: next-best continuations, or other samples.
        cached: tokens of the prompt whose keys and values were at hand.
    """

    tokens: tuple[int, ...]
    text: str
    score: float
    normalized_score: float
    token_scores: tuple[float, ...]
    ended: Ended
    others: tuple[Generation, ...] = ()
    cached: int = 0

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
    rules: FieldTokenizer | None = None,
    prefixes: PrefixCache | None = None,
    **options: Unpack[GenerationOptions],
) -> list[Generation]:
    """Continue prompts; batching changes no result.

    Args:
        model: language model, which is in evaluation mode during the call.
        prompts: token ids of each prompt, at least one, special tokens included.
        tokenizer: tokenizer for the text of continuations; required for stop strings.
        ends: ids of end tokens, which are not part of the text.
        settings: settings of the search; defaults if unset.
        batch_tokens: positions continued together: prompts × longest × continuations.
        batch_size: prompts continued together, instead of `batch_tokens`.
        first_name: number of the first prompt, on which its random draws depend.
        rules: fields of the sequences, outside of which no token is written.
        prefixes: cache of the beginnings of prompts; none if unset.
        **options: fields of `GenerationSettings` that override `settings`.

    Returns:
        A continuation for each prompt, in the same order.

    Raises:
        ConfigError: when settings contradict each other or the model.
        DataError: when a prompt is empty or has an id outside of the vocabulary.
        ModelError: when the model has too few learned positions for a prompt and its continuation;
            nothing is computed then.
    """
    resolved = _resolve(settings, options)
    _check(model, prompts, tokenizer, ends, resolved)
    # A record ends by its own rules, so it may be as long as the longest of training.
    usual = NEW_TOKENS if rules is None else rules.longest or model.spec.max_length or NEW_TOKENS
    # Prompts that leave room for different numbers of new tokens are continued apart.
    alike: dict[GenerationSettings, list[int]] = {}
    for number, prompt in enumerate(prompts):
        alike.setdefault(resolved.limited(_room(model, prompt), usual), []).append(number)
    results: dict[int, Generation] = {}

    def run(settings: GenerationSettings, part: list[int]) -> list[Generation]:
        chosen = [prompts[i] for i in part]
        texts = [
            None if tokenizer is None else RunningText(tokenizer, each, settings.stop)
            for each in chosen
        ]
        continuation = _continuation(model, chosen, texts, ends, settings, rules, prefixes)
        hypotheses = search(
            _formed(continuation, settings, tokenizer),
            *_tensors(chosen, model),
            settings,
            specials=continuation.specials,
            # Random draws depend on the prompt's number, not on its row in a batch.
            names=[first_name + i for i in part],
        )
        return [
            replace(assembled(best, text, continuation.limit), cached=cached)
            for best, text, cached in zip(
                hypotheses, texts, _cached(continuation, len(part)), strict=True
            )
        ]

    with _evaluating(model):
        for limited, numbers in alike.items():
            assert limited.max_length is not None
            batches = plan_batches(
                # Batches are planned for their final length, as new tokens take memory too.
                [len(prompts[i]) + limited.max_length for i in numbers],
                width=limited.n_best if limited.sampling else limited.beam,
                batch_tokens=batch_tokens,
                batch_size=batch_size,
            )
            parts = [[numbers[i] for i in batch] for batch in batches]
            for part, generations in split_on_oom(parts, partial(run, limited)):
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
    prefixes: PrefixCache | None = None,
    observe: Callable[[int], None] | None = None,
    **options: Unpack[GenerationOptions],
) -> TextStream:
    """Continue a prompt as a stream of text.

    The chunks of the stream make up the text that `generate` returns. No chunk ends inside a
    character or contains the beginning of a stop string.

    Args:
        model, tokenizer, ends, settings, **options: arguments of `generate`.
        prompt: token ids of the prompt.
        name: number of the prompt, on which its random draws depend.
        within: factory of a further context in which tokens are computed.
        prefixes: argument of `generate`.
        observe: receiver of the number of new tokens, after each of them.

    Raises:
        ConfigError, DataError, ModelError: as `generate` does, and for a beam or several samples.
    """
    settings = _resolve(settings, options)
    # A beam may drop a hypothesis after its text was shown.
    if settings.n_best > 1 or (settings.beam > 1 and not settings.sampling):
        raise ConfigError(
            "Only one continuation can be streamed: a beam changes its mind until the end",
            where=f"beam = {settings.beam}, n_best = {settings.n_best}",
            remedy="Stream with beam = 1 and n_best = 1",
        )
    _check(model, [prompt], tokenizer, ends, settings)
    settings = settings.limited(_room(model, prompt))
    text = RunningText(tokenizer, prompt, settings.stop)
    continuation = _continuation(model, [prompt], [text], ends, settings, None, prefixes)
    drawn = stream_tokens(
        _formed(continuation, settings, tokenizer),
        *_tensors([prompt], model),
        settings,
        specials=continuation.specials,
        name=name,
        limit=continuation.limit,
    )

    @contextmanager
    def computing() -> Iterator[None]:
        # Entered anew for each chunk: between two chunks the caller may train, or use another
        # precision.
        with _evaluating(model), within():
            yield

    return TextStream(
        drawn, text, continuation.limit, computing, lambda: sum(_cached(continuation, 1)), observe
    )


def _continuation(
    model: CausalLM,
    prompts: Sequence[Sequence[int]],
    texts: Sequence[RunningText | None],
    ends: Sequence[int],
    settings: GenerationSettings,
    rules: FieldTokenizer | None = None,
    prefixes: PrefixCache | None = None,
) -> Continuation[Any]:
    def stopped(row: int, ids: Sequence[int]) -> bool:
        text = texts[row]
        return text is not None and text.stopped(ids)

    limit = settings.max_length
    assert limit is not None
    # Without stop strings no text is decoded, and a GPU may run ahead of the host.
    rule: Stopped | None = stopped if settings.stop else None
    reading = model.with_cache(settings.cache, max(map(len, prompts)) + limit)
    stepping: StepModel[Any] = reading if prefixes is None else prefixes.reading(reading)
    if rules is not None:
        from heedful.search.grammar import Grammar, RuledModel  # for few models

        device = model.output_weight.device
        grammar = Grammar(rules.states, model.spec.vocabulary, rules.bos, device)
        stepping = RuledModel(stepping, grammar)
    return Continuation(
        stepping,
        vocabulary=model.spec.vocabulary,
        ends=ends,
        limit=limit,
        stopped=rule,
    )


def _cached(continuation: Continuation[Any], count: int) -> list[int]:
    """Return the number of tokens of each prompt that were at hand, once the prompts are read."""
    reader = continuation.model
    return reader.cached if isinstance(reader, PrefixReader) else [0] * count


def _resolve(settings: GenerationSettings | None, options: GenerationOptions) -> GenerationSettings:
    return GenerationSettings.parse({**(settings.plain() if settings else {}), **options})


def _check(
    model: CausalLM,
    prompts: Sequence[Sequence[int]],
    tokenizer: TokenDecoder | None,
    ends: Sequence[int],
    settings: GenerationSettings,
) -> None:
    """Check settings and prompts before anything is computed."""
    check_width([model.spec], settings)
    if settings.stop and tokenizer is None:
        raise ConfigError("Stop strings are parts of a text, which has a tokenizer", where="stop")
    if settings.cache == "ring" and model.window is None:
        raise ConfigError(
            "A ring cache needs a model with a window: this one sees everything before a token",
            where="cache = ring",
            remedy="Use the growing or the static cache",
        )
    # Coverage sums attention over a source, which a language model does not have.
    if settings.coverage_penalty:
        raise ConfigError("A prompt is no source to be covered", where="coverage_penalty")
    vocabulary = model.spec.vocabulary
    assert all(0 <= end < vocabulary for end in ends), ends
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
        # Checked at the start: otherwise a long search would fail at its first missing position.
        room, asked = _room(model, prompt), settings.max_length or 1
        if room is not None and asked > room:
            table = model.spec.embedding.positions.max_length
            raise ModelError(
                f"{len(prompt)} tokens and {asked} new ones are more than the "
                f"{table} positions the model has learned",
                where=where,
                remedy=f"Ask for at most {room} new tokens"
                if room
                else f"Give a prompt of less than {table} tokens",
            )


def _room(model: CausalLM, prompt: Sequence[int]) -> int | None:
    """Return the number of new tokens for which a prompt leaves positions; None if unlimited."""
    table = model.spec.embedding.positions.max_length
    return None if table is None else max(table - len(prompt), 0)


def _formed(
    continuation: Continuation[Any], settings: GenerationSettings, tokenizer: TokenDecoder | None
) -> Any:
    """Return the model of prompts, bound to the schema or expression of the settings, if any."""
    if not settings.json_schema and not settings.regex:
        return continuation
    from heedful.search.structured_output import ruled_output  # for few requests

    return ruled_output(continuation, settings, tokenizer)


def _tensors(prompts: Sequence[Sequence[int]], model: CausalLM) -> tuple[Tensor, Tensor]:
    # Any id pads, as positions −1 are masked.
    ids, positions = pad([list(prompt) for prompt in prompts], 0)
    device = model.output_weight.device
    return ids.to(device), positions.to(device)


def assembled(hypotheses: Sequence[Hypothesis], text: RunningText | None, limit: int) -> Generation:
    """Return the best hypothesis as a continuation, with the others."""
    results = [_generation(hypothesis, text, limit) for hypothesis in hypotheses]
    return replace(results[0], others=tuple(results[1:]))


def _generation(hypothesis: Hypothesis, text: RunningText | None, limit: int) -> Generation:
    tokens = hypothesis.tokens
    return Generation(
        tokens=tokens,
        text="" if text is None else text.text(tokens),
        score=hypothesis.score,
        normalized_score=hypothesis.normalized_score,
        # The end token, which has the last score, is no part of the text.
        token_scores=hypothesis.token_scores[: len(tokens)],
        ended=reason_of_end(tokens, text, limit),
    )


@contextmanager
def _evaluating(model: CausalLM) -> Iterator[None]:
    """A context in which the model is in evaluation mode; its mode is restored at exit."""
    # A caller may sample in the middle of training, or close a stream early.
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


class GenerationPipeline(TextPipeline[CausalLM]):
    """A pipeline that continues texts with a language model."""

    kind: ClassVar[type[Any]] = CausalLM
    verbs: ClassVar[tuple[str, ...]] = ("generate", "stream")
    answers: ClassVar[bool] = False  # true for models of records that an encoder reads
    prefixes: PrefixCache | None = None  # of a server, whose requests begin alike
    refusal = "This model continues no text"
    remedy = "Give a language model, such as one trained with --task causal_lm"

    def keep_prefixes(self, most_bytes: int, observe: Callable[[int, int], None]) -> None:
        """Keep the keys and values of the beginnings of prompts; arguments of `PrefixCache`."""
        self.prefixes = PrefixCache(most_bytes, observe)

    def notice_written(self, prompts: Sequence[Sequence[int]], found: Sequence[Generation]) -> None:
        """Warn once of prompts that are longer, with what was written, than texts of training.

        Args:
            prompts: token ids of the prompts.
            found: continuation of each of them.
        """
        for ids, best in zip(prompts, found, strict=True):
            self.notice_length(*(len(ids) + len(each.tokens) for each in best.n_best))

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
        """Continue prompts; batching changes no result.

        Args:
            prompts: beginnings of texts; an empty one starts a text from nothing. Records, for a
                model of token sequences, are lines of JSON with the first fields.
            settings, batch_size, batch_tokens, first_name, **options: arguments of the function
                `generate`.

        Returns:
            A continuation for each prompt, in the same order; its text is the whole record for a
            model of token sequences.

        Raises:
            ConfigError: when settings contradict each other or the model.
            ModelError: when a prompt and its continuation are too long for the model.
            DataError: when a prompt is not valid Unicode (a lone surrogate), or no record.
        """
        prompts = list_of_texts(prompts, "prompts")
        tokenizer, engine = self.tokenizer, self.engine
        begun = [prompt_ids(tokenizer, prompt) for prompt in prompts]
        rules = tokenizer if isinstance(tokenizer, FieldTokenizer) else None
        # Long prompts are told of before they cost anything, and what was written when it is there.
        self.notice_length(*map(len, begun))
        with self.computing():
            found = generate(
                engine,
                begun,
                # A record is known as a whole, not by the text that follows a prompt.
                tokenizer if rules is None else None,
                ends=(tokenizer.eos,),
                settings=settings,
                batch_size=batch_size,
                batch_tokens=batch_tokens,
                first_name=first_name,
                rules=rules,
                prefixes=self.prefixes if rules is None else None,
                **options,
            )
        self.notice_written(begun, found)
        if rules is None:
            return found
        return [as_record(each, rules, ids) for each, ids in zip(found, begun, strict=True)]

    def stream(
        self,
        prompt: str,
        *,
        settings: GenerationSettings | None = None,
        **options: Unpack[GenerationOptions],
    ) -> TextStream:
        """Continue a prompt as a stream of text, see `TextStream`.

        Args:
            prompt: beginning of a text; an empty one starts a text from nothing.
            settings, **options: arguments of `generate`.

        Raises:
            ConfigError, ModelError, DataError: as `generate` does, and for a beam or several
                samples.
        """
        if isinstance(self.tokenizer, FieldTokenizer):
            raise ConfigError(
                "A record is known as a whole, and no stream of text",
                where="stream",
                remedy="Continue it without a stream",
            )
        model, begun = self.engine, prompt_ids(self.tokenizer, prompt)
        self.notice_length(len(begun))
        with self.computing():
            return stream(
                model,
                begun,
                self.tokenizer,
                ends=(self.tokenizer.eos,),
                settings=settings,
                within=self.computing,
                prefixes=self.prefixes,
                observe=lambda written: self.notice_length(len(begun) + written),
                **options,
            )


def as_record(found: Generation, rules: FieldTokenizer, prompt: Sequence[int]) -> Generation:
    """Return a continuation with the whole record as its text."""
    others = tuple(as_record(each, rules, prompt) for each in found.others)
    return replace(found, text=rules.decode([*prompt, *found.tokens]), others=others)
