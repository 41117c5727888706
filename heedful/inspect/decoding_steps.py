"""Generation step by step: visible positions, next tokens, caches, and the steps of a search."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heedful.errors import ConfigError, DataError, ModelError
from heedful.inspect.attention_maps import choose, visible_positions
from heedful.inspect.readings import LONGEST, ModelInput, StackTokens, read, tensors
from heedful.inspect.subject import Subject, array, inference, sublayers
from heedful.pipelines.streamed_text import RunningText
from heedful.search.constraints import Constraints, Moment, build_constraints
from heedful.search.dispatch import search as search_for
from heedful.search.search_settings import (
    NEW_TOKENS,
    Hypothesis,
    SearchSettings,
    Specials,
    longest_output,
)
from heedful.search.search_trace import SearchTrace, Step, places
from heedful.search.step_model import Continuation, log_probabilities

END = "(end)"
"""Display name of the token that ends a text, e.g. EOS."""


@dataclass(frozen=True)
class CacheSize:
    """Size of a decoder's cache of the tokens so far.

    Args:
        slots: number of tokens so far.
        shape: shape of the cached keys [1, K, slots, E] in the first layer with a cache; for linear
            attention, shape of the sums [1, 1, H, E, E]; for other mixers, shape of the first
            tensor of their state.
        layers: number of layers with a cache or state.
        bytes: bytes of the keys and values, sums or states of all layers.
    """

    slots: int
    shape: tuple[int, ...]
    layers: int
    bytes: int


@dataclass(frozen=True, eq=False)
class NextToken:
    """Predictions of the next token after some chosen tokens, and the state of the decoder.

    Args:
        reading: input of encoder and decoder, for `attention`; its last row belongs to this step.
        text: decoded text so far.
        chosen_scores: log-probabilities of the chosen tokens.
        logits: [V] logits of the next token.
        scores: [V] log-probabilities of the next token in a search; −∞ for tokens that a search
            never chooses.
        names: [V] tokens as strings, for display.
        end: id of the token that ends the text.
        ended: flag that the last chosen token is the end.
        visible: flags of the positions that this step sees, with some future positions.
        cache_sizes: sizes of the decoder's cache after each step. A language model's prompt, its
            last token excepted, is cached in one step before the first.
        memory_bytes: bytes of the source's keys and values, which are constant.
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
    """Steps and results of a beam search.

    Args:
        steps: continuations of each step.
        hypotheses: resulting hypotheses, best first.
        paths: indices of each hypothesis among the continuations of every step.
        texts: decoded texts of the hypotheses.
        ended: flag that the best hypothesis ended with the end token, not at the length limit.
        end: id of the token that ends the text.
        names: [V] tokens as strings, for display.
        text_of: function from ids to their text.
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
    """Predict the next token after chosen tokens, decoding step by step with a cache.

    Args:
        subject: a translator or a language model.
        text: source of a translator or prompt of a language model.
        chosen: ids chosen so far; the end token may be the last.
        coming: number of future positions in `visible`.

    Raises:
        ModelError: when the model does not generate.
        DataError: when the text is empty, the text with the chosen tokens is too long, or an id is
            not in the vocabulary or one that no search chooses.
    """
    writer = _Writer(subject, text, len(chosen) + 1)
    ended = bool(chosen) and chosen[-1] == writer.specials.eos
    # No step follows the end token, so it is never fed to the decoder.
    written = [*chosen[:-1]] if ended else [*chosen]
    writer.check(written)
    scores: list[Tensor] = []
    sizes: list[CacheSize] = []
    decoder = subject.model.stacks()["decoder"]
    with inference(subject.model):
        state = writer.model.start(*writer.source)
        rules = writer.rules()
        device = subject.device
        # Token by token, although one pass would do, since the cache of each step is shown.
        for step, token in enumerate([writer.specials.bos, *written]):
            tokens = torch.full((1, 1), token, dtype=torch.int64, device=device)
            logits, state = writer.model.step(state, tokens)
            # `log_probabilities` works in place, so the logits are copied first.
            last_logits = array(logits[0, 0].float().clone())
            own = log_probabilities(logits)
            # The rules of a search hide padding and BOS; without them the best token could be one
            # that no search chooses.
            rules.apply(own, Moment(step, torch.zeros(1, dtype=torch.int64, device=device), None))
            scores.append(own[0, 0])
            slots = len(writer.read(written[:step]))
            size, memory_bytes = _sizes(decoder.blocks, state, slots)
            sizes.append(size)
    # `strict=False`, since the scores have one step more, that of the token still to be chosen.
    chosen_scores = [float(own[token]) for own, token in zip(scores, chosen, strict=False)]
    if -math.inf in chosen_scores:
        # Padding, BOS, and the end token of a language model, whose probability is that of `end`.
        raise writer.refusal(chosen[chosen_scores.index(-math.inf)])
    last = len(writer.read(written)) - 1
    return NextToken(
        reading=writer.reading_of(written),
        text=writer.text(written),
        chosen_scores=tuple(chosen_scores),
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
    silent: Sequence[int] = (),
) -> SearchRecord:
    """Search for the best translation or continuation, and record the steps of the search.

    Recording does not change the result.

    Args:
        subject: a translator or a language model.
        text: source of a translator or prompt of a language model.
        settings: search settings; the defaults if None. Without a `max_length`, a language model
            generates at most the default number of new tokens, within its positions.
        chosen: ids that the result begins with.
        silent: indices of tokens of a source or prompt that nothing attends to; the others keep
            their positions.

    Raises:
        ModelError: when the model does not generate.
        ConfigError: when settings contradict each other or the model.
        DataError: when the text is empty or too long, an id is not in the vocabulary, or a whole
            prompt is silent.
    """
    settings = settings or SearchSettings()
    if subject.model.spec.reads == "texts" and settings.max_length is None:
        writer = _Writer(subject, text, 0)
        # A translator's limit follows from its source; a prompt gives none, so generation's default
        # holds.
        longest = min(NEW_TOKENS, writer.bound - len(writer.read(())))
        settings = settings.model_copy(update={"max_length": max(1, longest)})
    writer = _Writer(subject, text, max(settings.max_length or 0, len(chosen)), silent)
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
        # A hypothesis that was cut at a language model's limit counts as finished, so its length is
        # compared.
        ended=hypotheses[0].finished and len(hypotheses[0].tokens) < writer.limit,
        end=writer.specials.eos,
        names=writer.names(),
        text_of=writer.text,
    )


class _Writer:
    """A translator with its source or a language model with its prompt, as a search uses it.

    Args:
        subject: the model.
        text: source or prompt.
        longest: upper bound of the tokens that a language model generates.
        silent: indices of tokens of the source or prompt that nothing attends to.
    """

    def __init__(
        self, subject: Subject, text: str, longest: int, silent: Sequence[int] = ()
    ) -> None:
        model: Any = subject.model
        if not model.spec.generates:
            raise ModelError(
                f"This model does not write; its kind is {model.spec.kind!r}",
                remedy="Take a translator or a language model",
            )
        self.subject = subject
        self.translates = model.spec.reads == "pairs"
        # An empty target: the decoder's tokens are BOS alone, or the prompt.
        self.initial = read(subject, text, "")
        self.tokenizer = subject.target
        source, source_positions, *_ = tensors(subject, [self.initial])
        choose(silent, source.shape[1], "token")
        source_positions[:, [*silent]] = -1
        self.source = (source, source_positions)
        self.size = len(model.output_weight)
        # A translator's hypotheses record whether they were cut.
        self.limit = float("inf")
        self.model = model
        # The bound is the tightest of three: the table of positions, the decoder's mixers, and the
        # display.
        lengths = (model.spec.num_positions, model.spec.stacks()["decoder"].longest_text, LONGEST)
        self.bound = min(length for length in lengths if length is not None)
        eos = self.tokenizer.eos
        self.specials = Specials(pad=self.tokenizer.pad, bos=self.tokenizer.bos, eos=eos)
        if not self.translates:
            # A search knows encoder and decoder only; this adapter gives it the prompt as a source.
            if silent:
                model = _PlacedPrompt(model, int(source_positions.max()))
            continuation = Continuation(model, vocabulary=self.size, ends=(eos,), limit=longest)
            self.model, self.specials = continuation, continuation.specials
            # The adapter ends a text by an id of its own, after the vocabulary.
            self.size += 1
            self.limit = longest

    def longest(self, settings: SearchSettings) -> int | None:
        """Return the largest number of tokens that a search may generate.

        Raises:
            ConfigError: when the settings ask for more than the model's positions allow.
        """
        spec: Any = self.subject.model.spec
        if self.translates:
            return longest_output([spec], settings)
        remaining = self.bound - len(self.read(()))
        if settings.max_length is not None and settings.max_length > remaining:
            raise ConfigError(
                f"The model can read {self.bound} tokens, and so write {remaining} after this text",
                where=f"max_length = {settings.max_length}",
                remedy="Ask for less, or give a shorter text",
            )
        return remaining

    def check(self, chosen: Sequence[int]) -> None:
        """Raise an error for ids outside the vocabulary, and for a sequence that is too long."""
        for id in chosen:
            if not 0 <= id < self.size or id == self.specials.eos:
                raise self.refusal(id)
        bound, length = self.bound, len(self.read(chosen))
        if length > bound:
            raise DataError(
                f"{length} tokens are more than the {bound} that the model can read",
                where="chosen",
                remedy="Go back some steps",
            )

    def refusal(self, id: int) -> DataError:
        """Return the error for an id that cannot stand in a text."""
        return DataError(
            f"The text cannot go on from token {id}",
            where="chosen",
            remedy=f"Choose one below {self.size} that is no special token; "
            f"{self.specials.eos} ends the text",
        )

    def read(self, chosen: Sequence[int]) -> tuple[int, ...]:
        """Return the decoder's input ids after these tokens were chosen."""
        return (*self.initial.tokens("decoder").ids, *chosen)

    def reading_of(self, chosen: Sequence[int]) -> ModelInput:
        """Return the input after these tokens, with `?` as the prediction of the next token."""
        decoder = StackTokens.of(self.tokenizer, self.read(chosen))
        after = StackTokens.of(self.tokenizer, chosen)
        # No id stands for the unknown next token; rows of cross-attention only need its label.
        predicted = StackTokens((*after.ids, -1), (*after.pieces, "?"), (*after.special, True))
        return replace(
            self.initial,
            target=self.text(chosen),
            decoder=decoder,
            predicted=predicted if self.translates else None,
        )

    def text(self, chosen: Sequence[int]) -> str:
        if self.translates:
            return self.tokenizer.decode(chosen)
        # Decoded with the prompt, since a token's leading space depends on the token before it.
        return RunningText(self.tokenizer, self.read(())).text(chosen)

    def names(self) -> tuple[str, ...]:
        known = self.tokenizer.pieces(range(min(self.tokenizer.size, self.size)))
        # Tables of embeddings are often padded to a multiple of 64 or 128, beyond the tokenizer's
        # size.
        names = [*known, *(f"<{id}>" for id in range(len(known), self.size))]
        names[self.specials.eos] = END
        return tuple(names)

    def rules(self) -> Constraints:
        # The limit is one that no step reaches, because a search forces the end token at its limit.
        limits = torch.tensor([LONGEST], device=self.subject.device)
        return build_constraints(SearchSettings(), self.specials, limits, None)


class _PlacedPrompt:
    """A language model that counts silent tokens of a prompt, too: what follows keeps its place.

    Args:
        model: the language model.
        last: position of the prompt's last token that is not silent.

    Raises:
        DataError: when every token is silent.
    """

    def __init__(self, model: Any, last: int) -> None:
        if last < 0:
            raise DataError("Every token of the prompt is silent", remedy="Leave one to go on from")
        self.model = model
        self.last = last

    def start(self, source: Tensor, source_positions: Tensor) -> Any:
        state = self.model.start(source, source_positions)
        places = torch.full_like(state.next_positions, self.last)
        return replace(state, next_positions=places)

    def step(self, state: Any, tokens: Tensor) -> Any:
        return self.model.step(state, tokens)

    def reorder(self, state: Any, rows: Tensor) -> Any:
        return self.model.reorder(state, rows)


def _sizes(blocks: Iterable[Any], state: Any, slots: int) -> tuple[CacheSize, int]:
    """Return the size of a decoder's cache, and the bytes of its projected encoder output."""
    # The state of a `Continuation` wraps that of the model.
    decoder = getattr(state, "inner", state).decoder
    own: list[list[Tensor]] = []
    memory = 0
    for block, states in zip(blocks, decoder.blocks, strict=True):
        for sublayer, each in zip(sublayers(block).values(), states, strict=True):
            if each is None:
                continue
            kept = (each.keys, each.values) if sublayer.has_softmax else _tensors(each)
            # A recurrent decoder holds states of its own tokens beside the encoder's output.
            if sublayer.is_cross:
                mine = getattr(each, "own", ())
                memory += _bytes(kept) - _bytes(mine)
                kept = mine
            if kept:
                own.append(list(kept))
    return CacheSize(slots, tuple(own[0][0].shape), len(own), sum(map(_bytes, own))), memory


def _tensors(state: Any) -> tuple[Tensor, ...]:
    """Return the tensors of a mixer's state, nested states included."""
    if state is None or isinstance(state, Tensor):
        return () if state is None else (state,)
    inner = state if isinstance(state, tuple) else vars(state).values()
    return tuple(tensor for each in inner for tensor in _tensors(each))


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
