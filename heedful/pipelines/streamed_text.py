"""Text of a growing continuation: its final part, stop strings, and chunks as they come."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Literal, Protocol

# Number of the prompt's last tokens that are decoded with the continuation: a tokenizer may decode
# the first word of a text differently, and a character may be split between two tokens.
_CONTEXT = 8
_UNFINISHED = "\ufffd"


Ended = Literal["end", "stop", "length"]
"""Reason of a text's end: the end token, a stop string, or the maximum length."""


class TokenDecoder(Protocol):
    """The decoder of a tokenizer."""

    def decode(self, ids: Sequence[int], /) -> str:
        """Return the text of ids; bytes of an unfinished character show as U+FFFD."""


class RunningText:
    """Text of the tokens that follow a prompt.

    Args:
        tokenizer: tokenizer of the prompt and its continuation.
        prompt: token ids of the prompt.
        stop: stop strings; the text ends before the first one.
    """

    def __init__(
        self, tokenizer: TokenDecoder, prompt: Sequence[int], stop: Sequence[str] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._context = list(prompt[-_CONTEXT:])
        self._before = tokenizer.decode(self._context)
        self._stop = tuple(stop)

    def full(self, ids: Sequence[int]) -> str:
        """Return the text of ids, including stop strings and what follows them."""
        # The ids are decoded after the prompt's end, whose text is then removed: by themselves they
        # would lose the space before their first word.
        together = self._tokenizer.decode([*self._context, *ids])
        pairs = zip(self._before, together, strict=False)
        # If the prompt ends inside a character, the text of its end changes with the next token.
        common = next((i for i, (a, b) in enumerate(pairs) if a != b), len(self._before))
        return together[common:]

    def stopped(self, ids: Sequence[int]) -> bool:
        """Return True if the text of ids contains a stop string."""
        return self._end(text := self.full(ids)) < len(text)

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of ids up to the first stop string."""
        text = self.full(ids)
        return text[: self._end(text)]

    def ready(self, ids: Sequence[int]) -> str:
        """Return the part of `text` that no further token can change.

        An unfinished character at the end, or a possible beginning of a stop string, is left out.
        """
        text = self.full(ids)
        if (end := self._end(text)) < len(text):
            return text[:end]
        # A byte token at the end shows as U+FFFD until the next one completes its character.
        text = text.rstrip(_UNFINISHED)
        partial_stops = [
            size
            for stop in self._stop
            # A proper prefix of the stop string, no longer than the text.
            for size in range(1, min(len(stop), len(text) + 1))
            if text.endswith(stop[:size])
        ]
        return text[: len(text) - max(partial_stops, default=0)]

    def _end(self, text: str) -> int:
        """Return the index of the first stop string; the length of the text without one."""
        places = [place for stop in self._stop if (place := text.find(stop)) >= 0]
        return min(places, default=len(text))


def reason_of_end(tokens: Sequence[int], text: RunningText | None, limit: int) -> Ended:
    """Return the reason of a text's end, from its tokens, their text and the maximum length."""
    if text is not None and text.stopped(tokens):
        return "stop"
    return "length" if len(tokens) == limit else "end"


class TextStream(Iterator[str]):
    """Text of a continuation in chunks, each as soon as no further token can change it.

    Args:
        drawn: generator of the token ids, which computes them on demand.
        text: decoder of the tokens so far.
        limit: maximum number of tokens.
        within: factory of the context in which tokens are computed.
        cached: function that returns the tokens of the prompt whose keys and values were at hand.
        observe: receiver of the number of tokens, after each of them.

    Attributes:
        tokens: token ids so far.
    """

    def __init__(
        self,
        drawn: Generator[int, None, None],
        text: RunningText,
        limit: int,
        within: Callable[[], AbstractContextManager[object]],
        cached: Callable[[], int] = lambda: 0,
        observe: Callable[[int], None] | None = None,
    ) -> None:
        self.tokens: list[int] = []
        self._drawn = drawn
        self._text = text
        self._limit = limit
        self._within = within
        self._cached = cached
        self._observe = observe
        self._shown = 0

    def __next__(self) -> str:
        """Return the next chunk of text."""
        with self._within():  # left before the caller's code runs
            for token in self._drawn:
                self.tokens.append(token)
                if self._observe is not None:
                    self._observe(len(self.tokens))
                if chunk := self._new(self._text.ready(self.tokens)):
                    return chunk
        if chunk := self._new(self._text.text(self.tokens)):
            return chunk
        raise StopIteration

    def close(self) -> None:
        """End the stream; no further tokens are computed."""
        self._drawn.close()

    @property
    def cached(self) -> int:
        """Tokens of the prompt whose keys and values were at hand, after the first chunk."""
        return self._cached()

    @property
    def ended(self) -> Ended:
        """Reason of the text's end, after the last chunk."""
        return reason_of_end(self.tokens, self._text, self._limit)

    def _new(self, text: str) -> str:
        # Text that was shown is final, so that a shorter one adds nothing.
        chunk, self._shown = text[self._shown :], max(self._shown, len(text))
        return chunk
