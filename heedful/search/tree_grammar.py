"""A grammar of trees: whatever a search finds is the code of a tree over the words of its source.

The code is that of `heedful.evaluate.brackets.tree_code`: labels in the order of their brackets,
and for each word the number of constituents that end behind it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

import torch
from torch import Tensor

from heedful.errors import ModelError
from heedful.search.grammar import Ruled, RuledModel
from heedful.search.step_model import State, StepModel
from heedful.text.tokenizer import TextTokenizer

_IN_A_ROW = 7
"""Labels in a row without a word between them; GUM's trees have up to six."""


class TreeGrammar:
    """The tokens that are possible at each place of a tree's code.

    A place is one number: words to come, open constituents, and labels since the last word. It is
    what decides, so that a search needs no memory of the code itself.

    Args:
        labels: token of each label.
        closings: token of each number of constituents that end behind a word, from 0.
        end: id of the end token.
        vocabulary: vocabulary size V.
        device: device of the search.

    Raises:
        ModelError: when the numbers from 0 on do not all have a token.
    """

    def __init__(
        self,
        labels: Sequence[int],
        closings: Mapping[int, int],
        end: int,
        vocabulary: int,
        device: torch.device,
    ) -> None:
        most = len(closings) - 1
        if most < 1 or set(closings) != set(range(most + 1)) or not labels:
            raise ModelError(
                "The target's tokens are no code of trees: labels and numbers from 0 are needed",
                remedy="Train the model on codes of trees (heedful.evaluate.brackets.tree_code)",
            )
        # One word may close as many constituents as a token says, so no more are ever open.
        self._depths = most + 1
        self._is_label = torch.zeros(vocabulary, dtype=torch.bool, device=device)
        self._is_label[list(labels)] = True
        self._closing = torch.full((vocabulary,), -1, device=device)
        for number, token in closings.items():
            self._closing[token] = number
        self._end = end

    @classmethod
    def of(cls, tokenizer: TextTokenizer, labels: Iterable[str], device: torch.device) -> Self:
        """Return the grammar of codes that a tokenizer writes.

        Args:
            tokenizer: tokenizer of the targets.
            labels: labels of trees; those of several tokens are left out.
            device: device of the search.

        Raises:
            ModelError: when it has no tokens for labels and numbers.
        """
        tokens = {label: tokenizer.encode(label) for label in sorted(labels)}
        closings: dict[int, int] = {}
        while len(ids := tokenizer.encode(str(len(closings)))) == 1:
            # A token for unknown text would stand for every larger number.
            if ids[0] == tokenizer.unk:
                break
            closings[len(closings)] = ids[0]
        usable = [ids[0] for ids in tokens.values() if len(ids) == 1 and ids[0] != tokenizer.unk]
        return cls(usable, closings, tokenizer.eos, tokenizer.size, device)

    @property
    def most_tokens(self) -> int:
        """Most tokens of a code for each word of its source, so that a search is never cut."""
        return _IN_A_ROW

    def beginning(self, words: Tensor) -> Tensor:
        """Return the places [...] before codes of trees over `words` words [...]."""
        return words * self._depths * _IN_A_ROW

    def after(self, places: Tensor, tokens: Tensor) -> Tensor:
        """Return the places [...] to which tokens [...] lead; others leave them as they are."""
        words, depth, labels = self._read(places)
        closing, is_label = self._closing[tokens], self._is_label[tokens]
        is_word = closing >= 0
        words = words - is_word.long()
        depth = depth + is_label.long() - closing.clamp(min=0)
        labels = torch.where(is_label, labels + 1, torch.where(is_word, 0, labels))
        return (words * self._depths + depth) * _IN_A_ROW + labels

    def apply(self, logits: Tensor, places: Tensor) -> Tensor:
        """Return logits [B, W, V] with −∞ for tokens that are impossible at places [B, W]."""
        words, depth, labels = (each[..., None] for each in self._read(places))
        has_room = (depth < self._depths - 1) & (labels < _IN_A_ROW - 1)
        may_open = (words > 0) & has_room
        closes = self._closing
        # The last word ends every constituent, and no other one the root.
        fits = torch.where(words == 1, closes == depth, closes < depth)
        may_write = (words > 0) & (depth > 0) & (closes >= 0) & fits
        possible = (may_open & self._is_label) | may_write
        possible[..., self._end] = (words == 0)[..., 0]
        return logits.masked_fill(~possible, -math.inf)

    def _read(self, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return words to come, open constituents, and labels since the last word."""
        rest = places // _IN_A_ROW
        return rest // self._depths, rest % self._depths, places % _IN_A_ROW


class TreeModel(RuledModel[State]):
    """A `StepModel` of an encoder-decoder whose target is the code of a tree.

    Args:
        model: model of the codes.
        grammar: grammar of the codes.
        words: [B] int64, number of words of each source of the batch.
    """

    def __init__(self, model: StepModel[State], grammar: TreeGrammar, words: Tensor) -> None:
        super().__init__(model, grammar)
        self._beginning = grammar.beginning(words)[:, None]

    def start(self, source: Tensor, source_positions: Tensor) -> Ruled[State]:
        """Read the sources [B, S]; see `StepModel`."""
        return Ruled(self.model.start(source, source_positions), self._beginning)
