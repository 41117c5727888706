"""A model that writes: what it may see, what it could say next, what it keeps, how it searches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heedful.decode.candidates import log_probabilities
from heedful.decode.constraints import Constraints, Moment, build_constraints
from heedful.decode.continuation import Continuation, Continued
from heedful.decode.generation import GenerationSettings
from heedful.decode.limits import longest_output
from heedful.decode.protocol import Hypothesis, Specials, StepModel
from heedful.decode.running_text import RunningText
from heedful.decode.search import search as search_for
from heedful.decode.settings import SearchSettings
from heedful.decode.trace import SearchTrace, Step, places
from heedful.errors import ConfigError, DataError, ModelError
from heedful.inspect.captures import array
from heedful.inspect.maps import module_of
from heedful.inspect.reading import LONGEST, Reading, Tokens, read, tensors
from heedful.inspect.subject import Subject, looking
from heedful.models.causal_lm import CausalLM
from heedful.models.translator import Translator
from heedful.nn.positions import Positions
from heedful.text.protocol import TextTokenizer

END = "(end)"
"""What the end of a text is called, whichever token stands for it."""


@dataclass(frozen=True)
class Kept:
    """Keys and values of what a decoder has read, all layers together.

    Args:
        slots: tokens that there is room for.
        shape: of the keys of one layer [1, K, slots, E].
        layers: how many there are.
        bytes: of all keys and values.
    """

    slots: int
    shape: tuple[int, ...]
    layers: int
    bytes: int


@dataclass(frozen=True, eq=False)
class NextToken:
    """Where a model stands that has written some tokens of a text.

    Args:
        reading: what encoder and decoder have read, for `attention`; its last row is this step's.
        text: what has been written.
        chosen_scores: log-probability of each token that was chosen.
        scores: [V] log-probabilities of the next token as a search has them; −∞ for tokens that
            are never written.
        names: [V] pieces for display.
        end: the token that ends the text.
        ended: whether it was chosen last.
        visible: whether this step sees each position, from the first to some that are still to
            come.
        kept: after each step the cache of the decoder; a language model reads its prompt but for
            the last token in one step before.
        memory_bytes: keys and values of the source, which do not grow.
    """

    reading: Reading
    text: str
    chosen_scores: tuple[float, ...]
    scores: np.ndarray
    names: tuple[str, ...]
    end: int
    ended: bool
    visible: tuple[bool, ...]
    kept: tuple[Kept, ...]
    memory_bytes: int


@dataclass(frozen=True, eq=False)
class Search:
    """What a beam search did.

    Args:
        steps: what it looked at, step by step.
        hypotheses: what it returned, best first.
        paths: for each of these its place among the continuations of each step.
        texts: for each what it says.
        ended: whether the model ended the best one, and not its longest length.
        end: the token that ends the text.
        names: [V] pieces for display.
        text_of: what some tokens say.
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
    """What could follow, token by token as a search goes, through the model's own cache.

    Args:
        subject: a translator or a language model.
        text: the source, or the beginning of a text.
        chosen: ids written so far; the end token may be the last.
        coming: how many positions to look ahead in `visible`.

    Raises:
        ModelError: when the model does not write.
        DataError: when there is no text, it and what is chosen are too long, or an id is no token.
    """
    writing = _Writing(subject, text, len(chosen) + 1)
    ended = bool(chosen) and chosen[-1] == writing.specials.eos
    written = [*chosen[:-1]] if ended else [*chosen]
    writing.check(written)
    scores: list[Tensor] = []
    kept: list[Kept] = []
    with looking(subject.model):
        state = writing.model.start(*writing.source)
        rules = writing.rules()
        device = subject.device
        for step, token in enumerate([writing.specials.bos, *written]):
            tokens = torch.full((1, 1), token, dtype=torch.int64, device=device)
            logits, state = writing.model.step(state, tokens)
            own = log_probabilities(logits)
            rules.apply(own, Moment(step, torch.zeros(1, dtype=torch.int64, device=device), None))
            scores.append(own[0, 0])
            kept.append(_kept(state))
    at = len(writing.read(written)) - 1
    query = torch.tensor([[at]])
    positions = Positions(query, torch.arange(at + 1 + coming)[None])
    mask = module_of(subject.model, "decoder").mask
    return NextToken(
        reading=writing.reading_of(written),
        text=writing.text(written),
        chosen_scores=tuple(float(own[token]) for own, token in zip(scores, chosen, strict=False)),
        scores=array(scores[-1]),
        names=writing.names(),
        end=writing.specials.eos,
        ended=ended,
        visible=tuple(positions.visible(mask)[0, 0, 0].tolist()),
        kept=tuple(kept),
        memory_bytes=_memory_bytes(state),
    )


def follow_search(
    subject: Subject,
    text: str,
    settings: SearchSettings | None = None,
    *,
    chosen: Sequence[int] = (),
) -> Search:
    """Search for the best translation or continuation, and tell how the search went.

    What is found is what the same search finds unwatched.

    Args:
        subject: a translator or a language model.
        text: the source, or the beginning of a text.
        settings: of the search; the defaults if unset. A language model writes as many tokens as
            `GenerationSettings` say if they do not, or as its positions have room for.
        chosen: ids that the result begins with.

    Raises:
        ModelError: when the model does not write.
        ConfigError: when settings contradict each other or the model.
        DataError: as `next_token`.
    """
    settings = settings or SearchSettings()
    if isinstance(subject.model, CausalLM) and settings.max_length is None:
        settings = settings.model_copy(update={"max_length": _room(subject, text)})
    writing = _Writing(subject, text, max(settings.max_length or 0, len(chosen)))
    writing.check(chosen)
    trace = SearchTrace()
    with looking(subject.model):
        found = search_for(
            writing.model,
            *writing.source,
            settings,
            specials=writing.specials,
            prefixes=[list(chosen)],
            longest=writing.longest(settings),
            trace=trace,
        )[0]
    steps = trace.steps(0)
    return Search(
        steps=tuple(steps),
        hypotheses=tuple(found),
        paths=tuple(tuple(places(steps, each)) for each in found),
        texts=tuple(writing.text(each.tokens) for each in found),
        ended=found[0].finished and len(found[0].tokens) < writing.limit,
        end=writing.specials.eos,
        names=writing.names(),
        text_of=writing.text,
    )


def _room(subject: Subject, text: str) -> int:
    """How much a language model writes when nobody says."""
    writing = _Writing(subject, text, 0)
    return max(1, min(GenerationSettings().max_length, writing.bound - len(writing.read(()))))


class _Writing:
    """A text that is being written: the model as a search sees it, whichever kind it is.

    Args:
        subject: the model.
        text: the source, or the beginning.
        longest: most tokens that a language model will be asked for.
    """

    def __init__(self, subject: Subject, text: str, longest: int) -> None:
        model = subject.model
        if not isinstance(model, Translator | CausalLM):
            raise ModelError(
                f"This model does not write; its kind is {model.spec.kind!r}",
                remedy="Take a translator or a language model",
            )
        self.subject = subject
        self.begun = read(subject, text, "")
        self.tokenizer: TextTokenizer = subject.target
        given = tensors(subject, [self.begun])
        self.source = (given[0], given[1])
        self.size = len(model.output_weight)
        self.limit = float("inf")  # a translator's hypotheses tell whether they were cut
        self.model: StepModel[Any] = model
        self.bound = min(model.spec.embedding.positions.max_length or LONGEST, LONGEST)
        eos = self.tokenizer.eos
        self.specials = Specials(pad=self.tokenizer.pad, bos=self.tokenizer.bos, eos=eos)
        if isinstance(model, CausalLM):
            continuation = Continuation(model, vocabulary=self.size, ends=(eos,), limit=longest)
            self.model, self.specials = continuation, continuation.specials
            self.size += 1  # the end
            self.limit = longest

    def longest(self, settings: SearchSettings) -> int | None:
        """The most tokens that a search may write.

        Raises:
            ConfigError: when more is asked for.
        """
        model = self.subject.model
        if isinstance(model, Translator):
            return longest_output([model.spec], settings)
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
                    f"Nothing goes on from a token {id}",
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
        """What the decoder has read once these were chosen."""
        assert self.begun.decoder is not None
        return (*self.begun.decoder.ids, *chosen)

    def reading_of(self, chosen: Sequence[int]) -> Reading:
        """The same, for whoever looks at attention."""
        decoder = Tokens.of(self.tokenizer, self.read(chosen))
        after = Tokens.of(self.tokenizer, chosen)
        predicted = Tokens((*after.ids, -1), (*after.pieces, "?"), (*after.special, True))
        own = self.begun.predicted is not None
        return replace(
            self.begun,
            target=self.text(chosen),
            decoder=decoder,
            predicted=predicted if own else None,
        )

    def text(self, chosen: Sequence[int]) -> str:
        """What has been written."""
        if isinstance(self.subject.model, Translator):
            return self.tokenizer.decode(chosen)
        return RunningText(self.tokenizer, self.read(())).text(chosen)

    def names(self) -> tuple[str, ...]:
        """Pieces for display; the end has a name of its own."""
        known = self.tokenizer.pieces(range(min(self.tokenizer.size, self.size)))
        names = [*known, *(f"<{id}>" for id in range(len(known), self.size))]
        names[self.specials.eos] = END
        return tuple(names)

    def rules(self) -> Constraints:
        """What is never written, as in a search without further rules."""
        limits = torch.tensor([LONGEST], device=self.subject.device)
        return build_constraints(SearchSettings(), self.specials, limits, None)


def _kept(state: Any) -> Kept:
    """The size of a decoder's cache."""
    inner = state.inner if isinstance(state, Continued) else state
    keys = inner.caches[0].keys
    total = sum(_bytes(cache.keys) + _bytes(cache.values) for cache in inner.caches)
    return Kept(keys.shape[2], tuple(keys.shape), len(inner.caches), total)


def _memory_bytes(state: Any) -> int:
    return sum(_bytes(layer.keys) + _bytes(layer.values) for layer in getattr(state, "memory", ()))


def _bytes(tensor: Tensor) -> int:
    return math.prod(tensor.shape) * tensor.element_size()
