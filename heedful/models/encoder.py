"""An encoder of text and its heads (BERT, Devlin 2019; RoBERTa, Liu 2019)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heedful.errors import ModelError, suggest
from heedful.models.model_spec import EncoderSpec
from heedful.models.prediction_heads import Pooler, build_head
from heedful.models.stack import Stack
from heedful.nn.capture import Capture
from heedful.nn.embeddings import InputEmbedding, TokenEmbedding
from heedful.nn.mixer import Context
from heedful.nn.positions import Positions


class EncoderModel(nn.Module):
    """Token ids to a state each, and what the heads make of the states.

    Args:
        spec: the complete description; see `heedful.models.model_spec`.
    """

    def __init__(self, spec: EncoderSpec) -> None:
        super().__init__()
        self.spec = spec
        self.embedding = TokenEmbedding(spec.vocabulary, spec.width)
        self.input = InputEmbedding(spec.width, spec.embedding)
        self.encoder = Stack(spec.width, spec.encoder, "encoder")
        self.pooler = Pooler(spec.width) if spec.pooler else None
        self.heads = nn.ModuleDict(
            {head.kind: build_head(head, self.embedding) for head in spec.heads}
        )
        self.pooled_heads = frozenset(head.kind for head in spec.heads if head.reads_pooled)

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        segments: Tensor | None = None,
        capture: Capture | None = None,
    ) -> Tensor:
        """Run the encoder.

        Args:
            ids: [B, L] int64.
            positions: [B, L] int64, counted from 0 at each row's first token; −1 is padding.
            segments: [B, L] int64, which of a pair of texts a token is of; the first if None.
            capture: what to keep on the way, at addresses such as `encoder.0.self.weights` and
                `encoder.0.output`.

        Returns:
            States [B, L, D]; those of padding mean nothing.

        Raises:
            ModelError: when a learned position lies past its table.
        """
        x = self.input(ids, positions, self.embedding, segments)
        states: Tensor = self.encoder(x, Context(Positions.of_self(positions), capture=capture))
        return states

    def pooled(self, states: Tensor, positions: Tensor) -> Tensor:
        """Return a vector for each whole text: the pooler's output for its first token.

        Args:
            states: [B, L, D] of `forward`.
            positions: [B, L] int64, the same.

        Returns:
            [B, D].

        Raises:
            ModelError: when the model has no pooler.
        """
        if self.pooler is None:
            raise ModelError(
                "The model has no pooler",
                remedy="Use the states themselves, such as their mean or the first token's",
            )
        pooled: Tensor = self.pooler(first_states(states, positions))
        return pooled

    def masked_lm_logits(self, states: Tensor) -> Tensor:
        """Scores of every piece at positions of any choice: [..., D] to [..., V].

        Raises:
            ModelError: when the model has no such head, as for all heads below.
        """
        return self._of_each("masked_lm", states)

    def next_sentence_logits(self, states: Tensor, positions: Tensor) -> Tensor:
        """Scores [B, 2] of the second text following the first, and of it not doing so.

        Args:
            states: [B, L, D] of `forward`.
            positions: [B, L] int64, the same.
        """
        return self._of_whole("next_sentence", states, positions)

    def sequence_logits(self, states: Tensor, positions: Tensor) -> Tensor:
        """Scores [B, labels] of each whole text's label.

        Args:
            states: [B, L, D] of `forward`.
            positions: [B, L] int64, the same.
        """
        return self._of_whole("sequence", states, positions)

    def token_logits(self, states: Tensor) -> Tensor:
        """Scores of each token's label: [..., D] to [..., labels]."""
        return self._of_each("token", states)

    def span_logits(self, states: Tensor) -> Tensor:
        """Scores of an answer starting and ending at a token: [..., D] to [..., 2]."""
        return self._of_each("span", states)

    def stacks(self) -> dict[str, Stack]:
        """Return the stacks by name, in the order of a pass."""
        return {"encoder": self.encoder}

    def input_modules(self) -> dict[str, InputEmbedding]:
        """Return the module that embeds the tokens of each stack."""
        return {"encoder": self.input}

    def stream_logits(self, hidden: Tensor) -> Tensor:
        """Scores [B, L, V] of the piece at each token from normed states of any layer [B, L, D]."""
        return self.masked_lm_logits(hidden)

    def predict(self, states: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
        """Scores of the labels of whole texts [B, labels], or of labels or pieces of R tokens.

        Args:
            states: [B, L, D] of `forward`.
            positions: [B, L] int64, the same.
            rows: [B, L] bool, the chosen tokens; not used for labels of whole texts.
        """
        if self.spec.predicts == "label":
            return self.sequence_logits(states, positions)
        if self.spec.predicts == "token_label":
            return self.token_logits(states[rows])
        return self.masked_lm_logits(states[rows])

    def _of_each(self, kind: str, states: Tensor) -> Tensor:
        logits: Tensor = self._head(kind)(states)
        return logits

    def _of_whole(self, kind: str, states: Tensor, positions: Tensor) -> Tensor:
        head = self._head(kind)
        pooled = kind in self.pooled_heads
        whole = self.pooled(states, positions) if pooled else first_states(states, positions)
        logits: Tensor = head(whole)
        return logits

    def _head(self, kind: str) -> nn.Module:
        if kind not in self.heads:
            raise ModelError(
                f"The model has no {kind} head",
                remedy=suggest(kind, self.heads) or "It has no heads: fine-tune it with one",
            )
        return self.heads[kind]


def first_states(states: Tensor, positions: Tensor) -> Tensor:
    """The state of each row's first token, on whichever side the padding is.

    Args:
        states: [B, L, D].
        positions: [B, L] int64; the first token is the one at 0.

    Returns:
        [B, D]; arbitrary for a row that holds nothing.
    """
    first = (positions == 0).int().argmax(dim=1)
    rows = torch.arange(first.shape[0], device=first.device)
    return states[rows, first]
