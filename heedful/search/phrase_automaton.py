"""Phrases that a sequence must contain, and automata that recognise them token by token.

The automaton of a sentence (Aho and Corasick 1975) has all alternatives of its phrases, so that
phrases may share tokens, overlap at their ends and have several spellings.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class RequiredPhrase:
    """A phrase that a translation must contain.

    Args:
        alternatives: spellings as token ids, of which any is accepted.
        times: number of occurrences, which may not overlap.
        at_most: flag that further occurrences are forbidden; only for phrases of one token.
        name: name for messages, which is ignored in comparisons of phrases.
    """

    alternatives: tuple[tuple[int, ...], ...]
    times: int = 1
    at_most: bool = False
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        assert self.alternatives
        assert all(self.alternatives)
        # A ban acts on one token; a longer phrase could only be stopped at its last one.
        assert not self.at_most or all(len(ids) == 1 for ids in self.alternatives)


class WordBoundaries(NamedTuple):
    """Tokens at which words continue: no phrase begins or ends inside of a word.

    Args:
        internal: [V] or [B, V] bool, tokens that continue the word of the token before them.
        final: [V] or [B, V] bool, tokens whose word may be continued by the next token.
    """

    internal: Tensor
    final: Tensor

    @classmethod
    def of(cls, edges: tuple[Sequence[bool], Sequence[bool]], size: int) -> WordBoundaries:
        """Build the tables for a model of V tokens.

        Args:
            edges: two flags of each token of the tokenizer: it begins, or ends, inside of a word.
            size: vocabulary size V of the model, which may exceed that of the tokenizer.
        """
        tables = torch.zeros((2, size), dtype=torch.bool)
        for table, flags in zip(tables, edges, strict=True):
            table[: len(flags)] = torch.tensor(flags)[:size]
        return cls(*tables)

    def sets(self, row: int, tokens: Collection[int]) -> tuple[frozenset[int], frozenset[int]]:
        """Return the internal and the final tokens among some tokens of a sentence."""
        ids = sorted(tokens)
        index = torch.tensor(ids, dtype=torch.int64, device=self.internal.device)
        tables = (table if table.dim() == 1 else table[row] for table in self)
        flags = ([*zip(ids, table[index].tolist(), strict=True)] for table in tables)
        internal, final = (frozenset(id for id, flag in pairs if flag) for pairs in flags)
        return internal, final


def missing_phrases(
    tokens: Sequence[int],
    phrases: Sequence[RequiredPhrase],
    internal: frozenset[int],
    final: frozenset[int],
) -> tuple[int, ...]:
    """Return the phrases that a hypothesis lacks.

    Args:
        tokens: token ids of the hypothesis.
        phrases: required phrases; equal ones need separate occurrences.
        internal, final: sets of tokens; see `WordBoundaries`.

    Returns:
        Indices of the missing phrases.
    """
    inside = [
        place > 0 and token in internal and tokens[place - 1] in final
        for place, token in enumerate(tokens)
    ]
    needed: Counter[RequiredPhrase] = Counter()
    missing: list[int] = []
    for place, phrase in enumerate(phrases):
        # The n-th of several equal phrases needs the occurrences of all n of them.
        same = replace(phrase, times=1)
        needed[same] += phrase.times
        if _occurrences(tokens, phrase, [*inside, False]) < needed[same]:
            missing.append(place)
    return tuple(missing)


def _occurrences(tokens: Sequence[int], phrase: RequiredPhrase, inside: Sequence[bool]) -> int:
    """Count the most occurrences that do not overlap."""
    # Greedy: taking the occurrence that ends first leaves the most tokens for the others.
    count = start = 0
    for end in range(1, len(tokens) + 1):
        if inside[end]:
            continue
        for ids in phrase.alternatives:
            begin = end - len(ids)
            if begin >= start and not inside[begin] and tuple(tokens[begin:end]) == ids:
                count, start = count + 1, end
                break
    return count


class PhraseTables(NamedTuple):
    """The automata of a batch's sentences: N states, P phrases, A tokens of phrases.

    Args:
        alphabet: [B, A] int64, the tokens of phrases; −1 for padding.
        next_state: [B, N, 2 + A] int64, next state after a token of no phrase, after a final token
            of no phrase, and after each token of phrases. A search begins in state 0.
        final: [B, N] bool, flags of states after a final token.
        ending: [B, N, P] int64, length of the shortest alternative that ends in a state; 0 if none.
        depth: [B, N, P] int64, progress in a phrase that a state has begun, less than `worth`.
        worth: [B, P] int64, length of the longest alternative of a phrase; 0 for padding.
        times: [B, P] int64, required occurrences.
        capped: [B, A, P] bool, flags of tokens that are a phrase with `at_most`.
    """

    alphabet: Tensor
    next_state: Tensor
    final: Tensor
    ending: Tensor
    depth: Tensor
    worth: Tensor
    times: Tensor
    capped: Tensor

    @classmethod
    def build(
        cls, sentences: Sequence[Sequence[RequiredPhrase]], words: WordBoundaries | None
    ) -> PhraseTables:
        """Build the automata of sentences.

        Args:
            sentences: phrases of each sentence.
            words: word boundaries, where phrases begin and end; anywhere if None.
        """
        automata = []
        for row, phrases in enumerate(sentences):
            # Equal phrases become one that must occur as often as all of them.
            times: Counter[RequiredPhrase] = Counter()
            for phrase in phrases:
                times[replace(phrase, times=1)] += phrase.times
            merged = [replace(phrase, times=count) for phrase, count in times.items()]
            automata.append(_Automaton(row, merged, words))
        columns = zip(*(automaton.tables() for automaton in automata), strict=True)
        # The values are in the order of the fields. No token is −1, so padding never matches.
        fills = (-1, 0, 0, 0, 0, 0, 0, 0)
        return cls(*(_pad_stack(column, fill) for column, fill in zip(columns, fills, strict=True)))

    def to(self, device: torch.device) -> PhraseTables:
        """Move to a device."""
        return PhraseTables(*(table.to(device) for table in self))

    def select(self, sentences: Tensor) -> PhraseTables:
        """Select sentences by a mask [B] or by their indices."""
        return PhraseTables(*(table[sentences] for table in self))


_ROOTS = 2
"""States in which no phrase has begun: after a token that is not final, and after one that is."""


class _Automaton:
    """The automaton of one sentence: a state for each beginning of an alternative."""

    def __init__(
        self, row: int, phrases: Sequence[RequiredPhrase], words: WordBoundaries | None
    ) -> None:
        self.phrases = phrases
        alternatives = [ids for phrase in phrases for ids in phrase.alternatives]
        self.alphabet = sorted({token for ids in alternatives for token in ids})
        none: frozenset[int] = frozenset()
        self.internal, self.final = (
            (none, none) if words is None else words.sets(row, self.alphabet)
        )
        self.children: list[dict[int, int]] = [{} for _ in range(_ROOTS)]
        self.last: list[int] = [-1] * _ROOTS
        for ids in alternatives:
            state = 0
            for token in ids:
                if token not in self.children[state]:
                    self.children[state][token] = len(self.children)
                    self.children.append({})
                    self.last.append(token)
                state = self.children[state][token]
        # Right for states of one token; `_add_transitions` finds the suffixes of deeper ones.
        self.suffix = [self._root(token) for token in self.last]
        self.next: list[dict[int, int]] = [{} for _ in self.children]
        self._add_transitions()

    def _root(self, token: int) -> int:
        return int(token in self.final)

    def _add_transitions(self) -> None:
        """Find the suffix of each state, and the state after each token of the alphabet."""
        children, suffix, following = self.children, self.suffix, self.next
        following[0] = {token: children[0].get(token, self._root(token)) for token in self.alphabet}
        following[1] = {
            token: self._root(token) if token in self.internal else state
            for token, state in following[0].items()  # no phrase begins inside of a word
        }
        self.order: list[int] = []
        waiting = deque(children[0].values())
        # Breadth first: the suffix of a state is shorter, so its transitions are known.
        while waiting:
            state = waiting.popleft()
            self.order.append(state)
            after_suffix = following[suffix[state]]
            following[state] = {**after_suffix, **children[state]}
            for token, child in children[state].items():
                suffix[child] = after_suffix[token]
                waiting.append(child)

    def tables(self) -> PhraseTables:
        """Return the tables of this sentence, without the dimension of the batch."""
        states, phrases = len(self.children), len(self.phrases)
        ending, depth = ([[0] * phrases for _ in range(states)] for _ in range(2))
        capped = [[False] * phrases for _ in self.alphabet]
        worth = [max(map(len, phrase.alternatives)) for phrase in self.phrases]
        for number, phrase in enumerate(self.phrases):
            for ids in phrase.alternatives:
                state = 0
                for count, token in enumerate(ids[:-1], start=1):
                    state = self.children[state][token]
                    # Progress is `worth` minus the tokens still missing, so all alternatives end
                    # at one value.
                    value = worth[number] - (len(ids) - count)
                    depth[state][number] = max(depth[state][number], value)
                state = self.children[state][ids[-1]]
                ending[state][number] = len(ids)  # all alternatives of a state have this length
                if phrase.at_most:
                    capped[self.alphabet.index(ids[0])][number] = True
        for state in self.order:  # breadth first: the suffix of a state comes before it
            shorter = self.suffix[state]
            depth[state] = list(map(max, depth[state], depth[shorter]))
            ending[state] = [
                short or own for short, own in zip(ending[shorter], ending[state], strict=True)
            ]
        return PhraseTables(
            torch.tensor(self.alphabet, dtype=torch.int64),
            torch.tensor([[0, 1, *after.values()] for after in self.next]),
            torch.tensor([state == 1 or self.last[state] in self.final for state in range(states)]),
            torch.tensor(ending, dtype=torch.int64),
            torch.tensor(depth, dtype=torch.int64),
            torch.tensor(worth, dtype=torch.int64),
            torch.tensor([phrase.times for phrase in self.phrases], dtype=torch.int64),
            torch.tensor(capped, dtype=torch.bool).reshape(len(self.alphabet), phrases),
        )


def _pad_stack(tables: Sequence[Tensor], fill: int) -> Tensor:
    """Stack tables of different sizes, padded with `fill` to the largest."""
    shape = [max(sizes) for sizes in zip(*(table.shape for table in tables), strict=True)]
    stacked = tables[0].new_full((len(tables), *shape), fill)
    for row, table in zip(stacked, tables, strict=True):
        row[tuple(slice(size) for size in table.shape)] = table
    return stacked
