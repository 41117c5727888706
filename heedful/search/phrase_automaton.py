"""Phrases that a sequence must contain, and the automata that follow them token by token.

An automaton (Aho and Corasick 1975) holds all alternatives of a sentence's phrases, so that phrases
may share tokens, begin inside one another and be spelled in several ways.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class RequiredPhrase:
    """A phrase that a translation must contain.

    Args:
        alternatives: token ids; any of them serves.
        times: number of occurrences, which may not overlap.
        whole_words: no occurrence may end inside a word.
        at_most: the translation may not contain it more often; for single tokens.
    """

    alternatives: tuple[tuple[int, ...], ...]
    times: int = 1
    whole_words: bool = False
    at_most: bool = False

    def __post_init__(self) -> None:
        assert self.alternatives
        assert all(self.alternatives)
        assert not self.at_most or all(len(ids) == 1 for ids in self.alternatives)


def missing_phrases(
    tokens: Sequence[int], phrases: Sequence[RequiredPhrase], internal: frozenset[int]
) -> tuple[int, ...]:
    """The phrases that a hypothesis lacks.

    Args:
        tokens: of the hypothesis.
        phrases: equal ones each need occurrences of their own.
        internal: tokens that continue the word before them.

    Returns:
        Their places among `phrases`.
    """
    needed: Counter[RequiredPhrase] = Counter()
    missing: list[int] = []
    for place, phrase in enumerate(phrases):
        same = replace(phrase, times=1)
        needed[same] += phrase.times
        if _occurrences(tokens, phrase, internal) < needed[same]:
            missing.append(place)
    return tuple(missing)


def _occurrences(tokens: Sequence[int], phrase: RequiredPhrase, internal: frozenset[int]) -> int:
    """The most occurrences that do not overlap: always the one that ends first."""
    count = start = 0
    for end in range(1, len(tokens) + 1):
        if phrase.whole_words and end < len(tokens) and tokens[end] in internal:
            continue
        if any(
            end - len(ids) >= start and tuple(tokens[end - len(ids) : end]) == ids
            for ids in phrase.alternatives
        ):
            count, start = count + 1, end
    return count


class PhraseTables(NamedTuple):
    """The automata of a batch's sentences: N states, P phrases, A tokens of phrases.

    Args:
        alphabet: [B, A] int64, the tokens of phrases; −1 for padding.
        next_state: [B, N, A + 1] int64, by the index of the token; the last is any other token.
        ending: [B, N, P] int64, tokens of the shortest alternative that ends in a state; 0 if none.
        depth: [B, N, P] int64, worth of a state as a beginning of a phrase, below `worth`.
        worth: [B, P] int64, tokens of a phrase's longest alternative; 0 for padding.
        times: [B, P] int64, occurrences needed.
        whole_words: [B, P] bool.
        capped: [B, A, P] bool, tokens that are a phrase that may not occur more often.
    """

    alphabet: Tensor
    next_state: Tensor
    ending: Tensor
    depth: Tensor
    worth: Tensor
    times: Tensor
    whole_words: Tensor
    capped: Tensor

    @classmethod
    def build(cls, sentences: Sequence[Sequence[RequiredPhrase]]) -> PhraseTables:
        """Build the automata of sentences."""
        automata = [_Automaton(_merged(phrases)) for phrases in sentences]
        columns = zip(*(automaton.tables() for automaton in automata), strict=True)
        fills = (-1, 0, 0, 0, 0, 0, 0, 0)
        return cls(*(_stacked(column, fill) for column, fill in zip(columns, fills, strict=True)))

    def to(self, device: torch.device) -> PhraseTables:
        """Move to a device."""
        return PhraseTables(*(table.to(device) for table in self))

    def select(self, sentences: Tensor) -> PhraseTables:
        """Select sentences by a mask [B] or their numbers."""
        return PhraseTables(*(table[sentences] for table in self))


class _Automaton:
    """The automaton of one sentence: which phrases end after a token, and which have begun."""

    def __init__(self, phrases: Sequence[RequiredPhrase]) -> None:
        self.phrases = phrases
        alternatives = [ids for phrase in phrases for ids in phrase.alternatives]
        self.alphabet = sorted({token for ids in alternatives for token in ids})
        self.children: list[dict[int, int]] = [{}]
        for ids in alternatives:
            state = 0
            for token in ids:
                if token not in self.children[state]:
                    self.children[state][token] = len(self.children)
                    self.children.append({})
                state = self.children[state][token]
        self.suffix = [0] * len(self.children)
        self.order = [0]
        waiting = deque(self.children[0].values())
        while waiting:
            state = waiting.popleft()
            self.order.append(state)
            for token, child in self.children[state].items():
                self.suffix[child] = self._next(self.suffix[state], token)
                waiting.append(child)

    def _next(self, state: int, token: int) -> int:
        while state and token not in self.children[state]:
            state = self.suffix[state]
        return self.children[state].get(token, 0)

    def tables(self) -> PhraseTables:
        """The tables of this sentence, without the dimension of the batch."""
        states, phrases, size = len(self.children), len(self.phrases), len(self.alphabet)
        following = torch.zeros((states, size + 1), dtype=torch.int64)
        for state in range(states):
            row = [self._next(state, token) for token in self.alphabet]
            following[state, :size] = torch.tensor(row, dtype=torch.int64)
        ending, depth = torch.zeros((2, states, phrases), dtype=torch.int64)
        capped = torch.zeros((size, phrases), dtype=torch.bool)
        worth = [max(map(len, phrase.alternatives)) for phrase in self.phrases]
        for number, phrase in enumerate(self.phrases):
            for ids in phrase.alternatives:
                state = 0
                for count, token in enumerate(ids[:-1], start=1):
                    state = self.children[state][token]
                    # What is left to go counts, so that all alternatives end at the same worth.
                    value = worth[number] - (len(ids) - count)
                    depth[state, number] = max(int(depth[state, number]), value)
                state = self.children[state][ids[-1]]
                shortest = int(ending[state, number])
                ending[state, number] = min(shortest, len(ids)) if shortest else len(ids)
                if phrase.at_most:
                    capped[self.alphabet.index(ids[0]), number] = True
        for state in self.order[1:]:  # after its suffix, which is shorter
            suffix = self.suffix[state]
            depth[state] = torch.maximum(depth[state], depth[suffix])
            shorter = (ending[suffix] > 0) & (
                (ending[state] == 0) | (ending[suffix] < ending[state])
            )
            ending[state] = torch.where(shorter, ending[suffix], ending[state])
        return PhraseTables(
            torch.tensor(self.alphabet, dtype=torch.int64),
            following,
            ending,
            depth,
            torch.tensor(worth, dtype=torch.int64),
            torch.tensor([phrase.times for phrase in self.phrases], dtype=torch.int64),
            torch.tensor([phrase.whole_words for phrase in self.phrases], dtype=torch.bool),
            capped,
        )


def _merged(phrases: Sequence[RequiredPhrase]) -> list[RequiredPhrase]:
    """Equal phrases as one that must occur as often as all of them."""
    times: Counter[RequiredPhrase] = Counter()
    for phrase in phrases:
        times[replace(phrase, times=1)] += phrase.times
    return [replace(phrase, times=count) for phrase, count in times.items()]


def _stacked(tables: Sequence[Tensor], fill: int) -> Tensor:
    """Stack tables of several sizes. An added last state column stays that of all other tokens."""
    shape = [max(sizes) for sizes in zip(*(table.shape for table in tables), strict=True)]
    stacked = tables[0].new_full((len(tables), *shape), fill)
    for row, table in zip(stacked, tables, strict=True):
        row[tuple(slice(size) for size in table.shape)] = table
    return stacked
