"""An encoder of text and its heads (BERT, Devlin 2019; RoBERTa, Liu 2019)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heedful.errors import ModelError, suggest
from heedful.models.encoder_spec import EncoderSpec
from heedful.models.prediction_heads import Pooler, build_head
from heedful.models.stack import Stack
from heedful.nn.capture import Capture
from heedful.nn.embeddings import InputEmbedding, in_rows, row_positions, source_embedding
from heedful.nn.mixer import Context
from heedful.nn.positions import Positions


class EncoderModel(nn.Module):
    """An encoder of token ids with heads that predict from its states.

    Args:
        spec: complete description; see `heedful.models.model_spec`.
    """

    def __init__(self, spec: EncoderSpec) -> None:
        super().__init__()
        self.spec = spec
        row_size, width = spec.embedding.row_size, spec.embedding.width or spec.width
        self.embedding = source_embedding(spec.vocabulary, width, row_size)
        self.input = InputEmbedding(spec.width, spec.embedding)
        self.encoder = Stack(spec.width, spec.encoder, "encoder")
        self.pooler = Pooler(spec.width) if spec.pooler else None
        # A model has at most one head of a kind, so the kind is its name. A tied head gets the
        # table itself.
        self.heads = nn.ModuleDict(
            {head.kind: build_head(head, spec.width, self.embedding) for head in spec.heads}
        )
        self.pooled_heads = frozenset(head.kind for head in spec.heads if head.reads_pooled)
        self.last_heads = frozenset(
            head.kind for head in spec.heads if getattr(head, "source", None) == "last"
        )

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
            segments: [B, L] int64, 0 in the first text of a pair, 1 in the second; all 0 if None.
            capture: tensors to keep, by addresses such as `encoder.0.self.weights` and
                `encoder.0.output`.

        Returns:
            States [B, L, D], or [B, N, D] of rows of tokens; arbitrary at padding.

        Raises:
            ModelError: when a learned position lies past its table.
        """
        # Segments are learned vectors here, not a mask: both texts of a pair see each other.
        if self.spec.embedding.row_size:
            ids, positions = in_rows(ids, positions, self.spec.embedding.row_size)
        x = self.input(ids, positions, self.embedding, segments)
        states: Tensor = self.encoder(x, Context(Positions.of_self(positions), capture=capture))
        return states

    def pooled(self, states: Tensor, positions: Tensor) -> Tensor:
        """Return a vector for each sequence: the pooler's output for its first token.

        Args:
            states: [B, L, D], result of `forward`.
            positions: [B, L] int64, argument of `forward`.

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
        """Return logits of every token at chosen positions: [..., D] to [..., V].

        Raises:
            ModelError: when the model has no such head; the methods below raise it, too.
        """
        return self._position_logits("masked_lm", states)

    def next_sentence_logits(self, states: Tensor, positions: Tensor) -> Tensor:
        """Return logits [B, 2]: the second text follows the first, or it does not.

        Args:
            states: [B, L, D], result of `forward`.
            positions: [B, L] int64, argument of `forward`.
        """
        return self._pooled_logits("next_sentence", states, positions)

    def sequence_logits(self, states: Tensor, positions: Tensor) -> Tensor:
        """Return logits [B, labels] of the label of each sequence.

        Args:
            states: [B, L, D], result of `forward`.
            positions: [B, L] int64, argument of `forward`.
        """
        return self._pooled_logits("sequence", states, positions)

    def rewards(self, states: Tensor, positions: Tensor) -> Tensor:
        """Return the reward [B] of each conversation.

        Args:
            states: [B, L, D], result of `forward`.
            positions: [B, L] int64, argument of `forward`.
        """
        return self._pooled_logits("reward", states, positions)[:, 0]

    def token_logits(self, states: Tensor) -> Tensor:
        """Return logits of the label of each token: [..., D] to [..., labels]."""
        return self._position_logits("token", states)

    def span_logits(self, states: Tensor) -> Tensor:
        """Return logits of an answer that starts and ends at a token: [..., D] to [..., 2]."""
        return self._position_logits("span", states)

    def ctc_scores(self, states: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of labels and of the blank, and the number of frames (CTC).

        Args:
            states: [B, N, D], result of `forward`; a state is a frame.
            positions: [B, L] int64, argument of `forward`, with padding on the right.

        Returns:
            [B, N, labels] float32, and counts [B] int64.
        """
        if self.spec.embedding.row_size:
            positions = row_positions(positions, self.spec.embedding.row_size)
        scores = self._position_logits("ctc", states).float().log_softmax(-1)
        return scores, (positions >= 0).sum(1)

    def stacks(self) -> dict[str, Stack]:
        """Return the stacks by name, in the order of a pass."""
        return {"encoder": self.encoder}

    def input_modules(self) -> dict[str, InputEmbedding]:
        """Return the module that embeds the tokens of each stack."""
        return {"encoder": self.input}

    def stream_logits(self, hidden: Tensor) -> Tensor:
        """Return logits [B, L, V] of each token from normed states of any layer [B, L, D]."""
        return self.masked_lm_logits(hidden)

    def predict(self, states: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
        """Return logits [B, labels] of sequences, or [R, labels] or [R, V] of R chosen tokens.

        Args:
            states: [B, L, D], result of `forward`.
            positions: [B, L] int64, argument of `forward`.
            rows: [B, L] bool, flags of the chosen tokens; unused for labels of whole sequences.
        """
        if self.spec.predicts == "label":
            return self.sequence_logits(states, positions)
        if self.spec.predicts == "token_label":
            return self.token_logits(states[rows])
        # Logits are computed only at the chosen tokens: at all others they would take most
        # of the memory.
        return self.masked_lm_logits(states[rows])

    def _position_logits(self, kind: str, states: Tensor) -> Tensor:
        logits: Tensor = self._head(kind)(states)
        return logits

    def _pooled_logits(self, kind: str, states: Tensor, positions: Tensor) -> Tensor:
        head = self._head(kind)
        pooled = kind in self.pooled_heads
        # BERT classifies from the pooler; RoBERTa's head has a dense layer of its own instead.
        end_states = last_states if kind in self.last_heads else first_states
        vector = self.pooled(states, positions) if pooled else end_states(states, positions)
        logits: Tensor = head(vector)
        return logits

    def _head(self, kind: str) -> nn.Module:
        if kind not in self.heads:
            raise ModelError(
                f"The model has no {kind} head",
                remedy=suggest(kind, self.heads) or "It has no heads: fine-tune it with one",
            )
        return self.heads[kind]


def first_states(states: Tensor, positions: Tensor) -> Tensor:
    """Return the state of the first token of each row, with padding on either side.

    Args:
        states: [B, L, D].
        positions: [B, L] int64; the first token is the one at 0.

    Returns:
        [B, D]; arbitrary for a row of padding alone.
    """
    first = (positions == 0).int().argmax(dim=1)  # [B]; 0 where a row has no such token
    rows = torch.arange(first.shape[0], device=first.device)
    return states[rows, first]


def last_states(states: Tensor, positions: Tensor) -> Tensor:
    """Return the state of the last token of each row, with padding on either side.

    Args:
        states: [B, L, D].
        positions: [B, L] int64; the last token has the largest, as padding is −1.

    Returns:
        [B, D]; arbitrary for a row of padding alone.
    """
    rows = torch.arange(len(positions), device=positions.device)
    return states[rows, positions.argmax(dim=1)]
