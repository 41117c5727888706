"""Generation step by step: visible positions, next tokens, caches, and the steps of a search."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heedful.errors import ConfigError, DataError, ModelError
from heedful.inspect.attention_maps import visible_positions
from heedful.inspect.readings import LONGEST, ModelInput, StackTokens, read, tensors
from heedful.inspect.subject import Subject, array, inference, sublayers
from heedful.pipelines.streamed_text import RunningText
from heedful.search.constraints import Constraints, Moment, build_constraints
from heedful.search.dispatch import search as search_for
from heedful.search.search_settings import (
    GenerationSettings,
    Hypothesis,
    SearchSettings,
    Specials,
    longest_output,
)
from heedful.search.search_trace import SearchTrace, Step, places
from heedful.search.step_model import Continuation, log_probabilities

END = "(end)"
"""The name of the end of a text, whichever token stands for it."""


@dataclass(frozen=True)
class CacheSize:
    """The size of all that a decoder remembers of the tokens so far.

    Args:
        slots: number of these tokens.
        shape: of the keys of the first layer that remembers anything [1, K, slots, E]; of linear
            attention, of the sums [1, 1, H, E, E] that take their place; of other mixers, of the
            first tensor of their state.
        layers: number of layers.
        bytes: of the keys and values, sums or states of all layers.
    """

    slots: int
    shape: tuple[int, ...]
    layers: int
    bytes: int


@dataclass(frozen=True, eq=False)
class NextToken:
    """A model that has written some tokens of a text, and its predictions of the next.

    Args:
        reading: the input of encoder and decoder, for `attention`; its last row is this step's.
        text: the text so far.
        chosen_scores: log-probability of each token that was chosen.
        logits: [V] scores of the next token before the softmax, as the model gives them.
        scores: [V] log-probabilities of the next token as a search has them; −∞ for tokens that
            are never written.
        names: [V] pieces for display.
        end: the token that ends the text.
        ended: whether it was chosen last.
        visible: whether this step sees each position, from the first to some that are still to
            come.
        cache_sizes: of the decoder after each step; a language model reads its prompt but for the
            last token in one step before.
        memory_bytes: keys and values of the source, which do not grow.
    """

    reading: ModelInput
    text: str
    chosen_scores: tuple[float, ...]
    logits: np.ndarray
    scores: np.ndarray
    names: tuple[str, ...]
    end: int
    ended: bool
    visible: tuple[bool, ...]
    cache_sizes: tuple[CacheSize, ...]
    memory_bytes: int


@dataclass(frozen=True, eq=False)
class SearchRecord:
    """The course and the results of a beam search.

    Args:
        steps: the continuations of each step.
        hypotheses: the results, best first.
        paths: for each of these its place among the continuations of each step.
        texts: of the hypotheses.
        ended: whether the model ended the best one, and not its longest length.
        end: the token that ends the text.
        names: [V] pieces for display.
        text_of: a function from tokens to their text.
    """

    steps: tuple[Step, ...]
    hypotheses: tuple[Hypothesis, ...]
    paths: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...]
    ended: bool
    end: int
    names: tuple[str, ...]
    text_of: Callable[[Sequence[int]], str]


def next_token(
    subject: Subject, text: str, chosen: Sequence[int] = (), *, coming: int = 3
) -> NextToken:
    """Predict the token after some chosen ones, step by step as a search does, with the cache.

    Args:
        subject: a translator or a language model.
        text: the source, or the beginning of a text.
        chosen: ids written so far; the end token may be the last.
        coming: number of positions ahead in `visible`.

    Raises:
        ModelError: when the model does not write.
        DataError: when there is no text, the text with the chosen tokens is too long, or an id is
            no token.
    """
    writer = _Writer(subject, text, len(chosen) + 1)
    ended = bool(chosen) and chosen[-1] == writer.specials.eos
    written = [*chosen[:-1]] if ended else [*chosen]
    writer.check(written)
    scores: list[Tensor] = []
    sizes: list[CacheSize] = []
    decoder = subject.model.stacks()["decoder"]
    with inference(subject.model):
        state = writer.model.start(*writer.source)
        rules = writer.rules()
        device = subject.device
        for step, token in enumerate([writer.specials.bos, *written]):
            tokens = torch.full((1, 1), token, dtype=torch.int64, device=device)
            logits, state = writer.model.step(state, tokens)
            last_logits = array(logits[0, 0].float().clone())  # the next line works in place
            own = log_probabilities(logits)
            rules.apply(own, Moment(step, torch.zeros(1, dtype=torch.int64, device=device), None))
            scores.append(own[0, 0])
            slots = len(writer.read(written[:step]))
            size, memory_bytes = _sizes(decoder.blocks, state, slots)
            sizes.append(size)
    last = len(writer.read(written)) - 1
    return NextToken(
        reading=writer.reading_of(written),
        text=writer.text(written),
        chosen_scores=tuple(float(own[token]) for own, token in zip(scores, chosen, strict=False)),
        logits=last_logits,
        scores=scores[-1].cpu().numpy(),
        names=writer.names(),
        end=writer.specials.eos,
        ended=ended,
        visible=visible_positions(subject.model, last, last + 1 + coming),
        cache_sizes=tuple(sizes),
        memory_bytes=memory_bytes,
    )


def follow_search(
    subject: Subject,
    text: str,
    settings: SearchSettings | None = None,
    *,
    chosen: Sequence[int] = (),
) -> SearchRecord:
    """Search for the best translation or continuation, and record the steps of the search.

    The result is that of the same search without a record.

    Args:
        subject: a translator or a language model.
        text: the source, or the beginning of a text.
        settings: of the search; the defaults if unset. Without a `max_length` a language model
            writes as many tokens as `GenerationSettings` say, or as its positions allow.
        chosen: ids that the result begins with.

    Raises:
        ModelError: when the model does not write.
        ConfigError: when settings contradict each other or the model.
        DataError: as `next_token`.
    """
    settings = settings or SearchSettings()
    if subject.model.spec.reads == "texts" and settings.max_length is None:
        writer = _Writer(subject, text, 0)
        longest = min(GenerationSettings().max_length, writer.bound - len(writer.read(())))
        settings = settings.model_copy(update={"max_length": max(1, longest)})
    writer = _Writer(subject, text, max(settings.max_length or 0, len(chosen)))
    writer.check(chosen)
    trace = SearchTrace()
    with inference(subject.model):
        hypotheses = search_for(
            writer.model,
            *writer.source,
            settings,
            specials=writer.specials,
            prefixes=[list(chosen)],
            longest=writer.longest(settings),
            trace=trace,
        )[0]
    steps = trace.steps(0)
    return SearchRecord(
        steps=tuple(steps),
        hypotheses=tuple(hypotheses),
        paths=tuple(tuple(places(steps, each)) for each in hypotheses),
        texts=tuple(writer.text(each.tokens) for each in hypotheses),
        ended=hypotheses[0].finished and len(hypotheses[0].tokens) < writer.limit,
        end=writer.specials.eos,
        names=writer.names(),
        text_of=writer.text,
    )


class _Writer:
    """A model with a text to translate or to continue, as a search uses it.

    Args:
        subject: the model.
        text: the source, or the beginning.
        longest: most tokens that a language model will write.
    """

    def __init__(self, subject: Subject, text: str, longest: int) -> None:
        model: Any = subject.model
        if not model.spec.generates:
            raise ModelError(
                f"This model does not write; its kind is {model.spec.kind!r}",
                remedy="Take a translator or a language model",
            )
        self.subject = subject
        self.translates = model.spec.reads == "pairs"
        self.begun = read(subject, text, "")
        self.tokenizer = subject.target
        source, source_positions, *_ = tensors(subject, [self.begun])
        self.source = (source, source_positions)
        self.size = len(model.output_weight)
        self.limit = float("inf")  # a translator's hypotheses tell whether they were cut
        self.model = model
        lengths = (model.spec.num_positions, model.spec.stacks()["decoder"].longest_text, LONGEST)
        self.bound = min(length for length in lengths if length is not None)
        eos = self.tokenizer.eos
        self.specials = Specials(pad=self.tokenizer.pad, bos=self.tokenizer.bos, eos=eos)
        if not self.translates:
            continuation = Continuation(model, vocabulary=self.size, ends=(eos,), limit=longest)
            self.model, self.specials = continuation, continuation.specials
            self.size += 1  # the end
            self.limit = longest

    def longest(self, settings: SearchSettings) -> int | None:
        """Return the most tokens that a search may write.

        Raises:
            ConfigError: when the settings ask for more.
        """
        spec: Any = self.subject.model.spec
        if self.translates:
            return longest_output([spec], settings)
        room = self.bound - len(self.read(()))
        if settings.max_length is not None and settings.max_length > room:
            raise ConfigError(
                f"The model can read {self.bound} tokens, and so write {room} after this text",
                where=f"max_length = {settings.max_length}",
                remedy="Ask for less, or give a shorter text",
            )
        return room

    def check(self, chosen: Sequence[int]) -> None:
        """Refuse ids that are no tokens, and more of them than the model can read."""
        for id in chosen:
            if not 0 <= id < self.size or id == self.specials.eos:
                raise DataError(
                    f"The text cannot go on from token {id}",
                    where="chosen",
                    remedy=f"Choose below {self.size}; {self.specials.eos} ends the text",
                )
        bound, length = self.bound, len(self.read(chosen))
        if length > bound:
            raise DataError(
                f"{length} tokens are more than the {bound} that the model can read",
                where="chosen",
                remedy="Go back some steps",
            )

    def read(self, chosen: Sequence[int]) -> tuple[int, ...]:
        """Return the ids that the decoder has read once these were chosen."""
        return (*self.begun.tokens("decoder").ids, *chosen)

    def reading_of(self, chosen: Sequence[int]) -> ModelInput:
        """Return them as a reading, with `?` for the next token."""
        decoder = StackTokens.of(self.tokenizer, self.read(chosen))
        after = StackTokens.of(self.tokenizer, chosen)
        predicted = StackTokens((*after.ids, -1), (*after.pieces, "?"), (*after.special, True))
        return replace(
            self.begun,
            target=self.text(chosen),
            decoder=decoder,
            predicted=predicted if self.translates else None,
        )

    def text(self, chosen: Sequence[int]) -> str:
        if self.translates:
            return self.tokenizer.decode(chosen)
        return RunningText(self.tokenizer, self.read(())).text(chosen)

    def names(self) -> tuple[str, ...]:
        known = self.tokenizer.pieces(range(min(self.tokenizer.size, self.size)))
        names = [*known, *(f"<{id}>" for id in range(len(known), self.size))]
        names[self.specials.eos] = END
        return tuple(names)

    def rules(self) -> Constraints:
        limits = torch.tensor([LONGEST], device=self.subject.device)
        return build_constraints(SearchSettings(), self.specials, limits, None)


def _sizes(blocks: Iterable[Any], state: Any, slots: int) -> tuple[CacheSize, int]:
    """Return the size of what a decoder keeps of its own tokens, and the bytes of its memory."""
    decoder = getattr(state, "inner", state).decoder  # that of a continuation holds the model's
    own: list[list[Tensor]] = []
    memory = 0
    for block, states in zip(blocks, decoder.blocks, strict=True):
        for sublayer, each in zip(sublayers(block).values(), states, strict=True):
            if each is None:
                continue
            kept = (each.keys, each.values) if sublayer.has_softmax else _tensors(each)
            if sublayer.is_cross:  # a recurrent decoder has states of its own beside its memory
                mine = getattr(each, "own", ())
                memory += _bytes(kept) - _bytes(mine)
                kept = mine
            if kept:
                own.append(list(kept))
    return CacheSize(slots, tuple(own[0][0].shape), len(own), sum(map(_bytes, own))), memory


def _tensors(state: Any) -> tuple[Tensor, ...]:
    """Return the tensors of a state that is no cache, those of states within it among them."""
    if state is None or isinstance(state, Tensor):
        return () if state is None else (state,)
    inner = state if isinstance(state, tuple) else vars(state).values()
    return tuple(tensor for each in inner for tensor in _tensors(each))


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
