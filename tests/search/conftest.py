"""Small models that are known completely, and searches by plain enumeration."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch

PAD, BOS, EOS, UNK = range(4)


class TableModel:
    """A step model whose next-token logits are drawn anew for every (source token, prefix).

    A state is a list, one entry a sentence, of the source token and the beams' prefixes.
    """

    def __init__(self, seed, size=6, spread=2.0):
        self.seed, self.size, self.spread = seed, size, spread
        self.steps = 0
        self.rows = 0
        self.table = {}

    def row(self, source, prefix):
        key = (source, prefix)
        if key not in self.table:
            rng = np.random.default_rng([self.seed, source, *prefix])
            self.table[key] = (rng.normal(size=self.size) * self.spread).astype(np.float32)
        return self.table[key]

    def start(self, source, source_positions):
        real = [
            row[where >= 0].tolist() for row, where in zip(source, source_positions, strict=True)
        ]
        return [(ids[0], [()]) for ids in real]

    def step(self, state, tokens):
        self.steps += 1
        self.rows += tokens.numel()
        after = [
            (source, [(*prefix, token) for prefix, token in zip(prefixes, row, strict=True)])
            for (source, prefixes), row in zip(state, tokens.tolist(), strict=True)
        ]
        logits = [[self.row(source, p[1:]) for p in prefixes] for source, prefixes in after]
        return torch.tensor(np.array(logits)), after

    def reorder(self, state, rows):
        width = len(state[0][1])
        chosen = []
        for row in rows.tolist():
            assert len({r // width for r in row}) == 1
            source, prefixes = state[row[0] // width]
            chosen.append((source, [prefixes[r % width] for r in row]))
        return chosen

    def log_probabilities(self, source, prefix):
        """By the textbook, in float64."""
        logits = self.row(source, tuple(prefix)).astype(np.float64)
        return logits - math.log(np.exp(logits).sum())


class MarkovModel(TableModel):
    """Of which the next token depends on the last one alone, by given probabilities [V, V]."""

    def __init__(self, probabilities):
        super().__init__(0, size=len(probabilities))
        self.logs = np.log(np.array(probabilities, dtype=np.float64) + 1e-30).astype(np.float32)

    def row(self, source, prefix):
        return self.logs[prefix[-1] if prefix else BOS]


@dataclass(frozen=True)
class Known:
    tokens: tuple
    score: float
    normalized: float


def score_of(model, source, tokens):
    ids = [*tokens, EOS]
    return sum(model.log_probabilities(source, ids[:i])[token] for i, token in enumerate(ids))


def norm(length, alpha):
    return ((5 + length + 1) / 6) ** alpha


def everything(model, source, longest, alpha, shortest=0):
    """All sequences there are, best first."""
    words = [token for token in range(model.size) if token not in (PAD, BOS, EOS)]
    found = []
    for length in range(shortest, longest + 1):
        for tokens in itertools.product(words, repeat=length):
            score = score_of(model, source, tokens)
            found.append(Known(tokens, score, score / norm(length, alpha)))
    return sorted(found, key=lambda k: -k.normalized)


def textbook_beam(model, source, width, longest, alpha):
    """Beam search without batches, tensors or early termination: runs to the longest length."""
    live, done = [((), 0.0)], []
    for length in range(longest + 1):
        grown = []
        for tokens, score in live:
            logs = model.log_probabilities(source, tokens)
            for token in range(model.size):
                if token in (PAD, BOS) or (length == longest and token != EOS):
                    continue
                grown.append(((*tokens, token), score + logs[token]))
        grown.sort(key=lambda g: -g[1])
        grown = grown[: 2 * width]
        done += [Known(t[:-1], s, s / norm(len(t) - 1, alpha)) for t, s in grown if t[-1] == EOS]
        live = [(t, s) for t, s in grown if t[-1] != EOS][:width]
    return sorted(done, key=lambda k: -k.normalized)


def textbook_greedy(model, source, longest):
    tokens = []
    while len(tokens) < longest:
        logs = model.log_probabilities(source, tokens)
        logs[[PAD, BOS]] = -math.inf
        best = int(np.argmax(logs))
        if best == EOS:
            break
        tokens.append(best)
    return tuple(tokens)


def sources(ids):
    """Sources [B, 1] of one token each, and their positions."""
    tokens = torch.tensor(ids)[:, None]
    return tokens, torch.zeros_like(tokens)


@pytest.fixture(scope="session")
def toy():
    return SimpleNamespace(
        TableModel=TableModel,
        MarkovModel=MarkovModel,
        everything=everything,
        textbook_beam=textbook_beam,
        textbook_greedy=textbook_greedy,
        score_of=score_of,
        norm=norm,
        sources=sources,
    )
