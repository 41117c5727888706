"""The text of a growing continuation: the part that is final, and the end at a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

# Tokens of the prompt that are decoded together with what follows them: a tokenizer may treat the
# first word of a text differently, and a character may begin in one token and end in another.
_CONTEXT = 8
_UNFINISHED = "\ufffd"


class TokenDecoder(Protocol):
    """A tokenizer's way from ids to text."""

    def decode(self, ids: Sequence[int], /) -> str:
        """Text of ids; bytes of an unfinished character show as U+FFFD."""


class RunningText:
    """Text of the tokens that follow a prompt.

    Args:
        tokenizer: of the prompt and what follows.
        prompt: its ids.
        stop: strings that end the text; it holds neither them nor what comes after them.
    """

    def __init__(
        self, tokenizer: TokenDecoder, prompt: Sequence[int], stop: Sequence[str] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._context = list(prompt[-_CONTEXT:])
        self._before = tokenizer.decode(self._context)
        self._stop = tuple(stop)

    def full(self, ids: Sequence[int]) -> str:
        """The text of ids, stop strings and all."""
        together = self._tokenizer.decode([*self._context, *ids])
        pairs = zip(self._before, together, strict=False)
        common = next((i for i, (a, b) in enumerate(pairs) if a != b), len(self._before))
        return together[common:]

    def stopped(self, ids: Sequence[int]) -> bool:
        """Return True if the text of ids contains a stop string."""
        return self._end(text := self.full(ids)) < len(text)

    def text(self, ids: Sequence[int]) -> str:
        """The text of ids up to the first stop string."""
        text = self.full(ids)
        return text[: self._end(text)]

    def ready(self, ids: Sequence[int]) -> str:
        """The part of `text` that no further token can take back.

        Not an unfinished character at its end, nor what may become a stop string.
        """
        text = self.full(ids)
        if (end := self._end(text)) < len(text):
            return text[:end]
        text = text.rstrip(_UNFINISHED)
        partial_stops = [
            size
            for stop in self._stop
            for size in range(1, min(len(stop), len(text) + 1))
            if text.endswith(stop[:size])
        ]
        return text[: len(text) - max(partial_stops, default=0)]

    def _end(self, text: str) -> int:
        """The index of the first stop string; the text's length without one."""
        places = [place for stop in self._stop if (place := text.find(stop)) >= 0]
        return min(places, default=len(text))
