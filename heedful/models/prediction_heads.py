"""Heads: small networks that predict from an encoder's states, one for each kind of output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.models.encoder_spec import HeadSpec, MaskedLMHeadSpec
from heedful.nn.embeddings import TokenEmbedding
from heedful.nn.feedforward import PLAIN_ACTIVATIONS, linear
from heedful.nn.norms import build_norm


class Pooler(nn.Module):
    """A dense layer and tanh over the state of the class token (Devlin 2019).

    Args:
        width: model width D.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = linear(width, width, bias=True)

    def forward(self, first: Tensor) -> Tensor:
        """Map states of first tokens [B, D] to [B, D]."""
        return torch.tanh(self.dense(first))


class MaskedLMHead(nn.Module):
    """Logits of every token at a position (Devlin 2019).

    Args:
        spec: activation, norm, and tying of the output projection to the embedding table.
        width: model width D.
        table: embedding table [V, W].
    """

    def __init__(self, spec: MaskedLMHeadSpec, width: int, table: TokenEmbedding) -> None:
        super().__init__()
        vocabulary, table_width = table.weight.shape
        self.dense = linear(width, table_width, bias=True)
        self.activation = PLAIN_ACTIVATIONS[spec.activation]
        self.norm = build_norm(spec.norm, table_width)
        # The module itself, so that both names stay one tensor through training.
        self.projection = table if spec.tied else TokenEmbedding(vocabulary, table_width)
        # A bias of its own even where the table is tied, as in BERT.
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, states: Tensor) -> Tensor:
        """Map states [..., D] to logits [..., V]."""
        return F.linear(self.features(states), self.projection.weight, self.bias)

    def features(self, states: Tensor) -> Tensor:
        """Map states [..., D] to the input of the output projection, [..., W]."""
        # Separate from the projection, as the fused loss multiplies by the table itself.
        x: Tensor = self.norm(self.activation(self.dense(states)))
        return x


class Classifier(nn.Module):
    """Dropout and a linear map to the logits of classes.

    Args:
        width: model width D.
        num_classes: number of classes.
        dropout: dropout probability of the input.
    """

    def __init__(self, width: int, num_classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.output = linear(width, num_classes, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        """Map states [..., D] to logits [..., classes]."""
        scores: Tensor = self.output(self.dropout(x))
        return scores


class DeepClassifier(Classifier):
    """A classifier with a dense layer of its own before it (Liu 2019).

    Args:
        width: model width D.
        num_classes: number of classes.
        dropout: dropout probability of the input.
        activation: function after the dense layer.
    """

    def __init__(
        self,
        width: int,
        num_classes: int,
        dropout: float = 0.0,
        activation: Callable[[Tensor], Tensor] = torch.tanh,
    ) -> None:
        super().__init__(width, num_classes, dropout)
        self.dense = linear(width, width, bias=True)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """Map states [..., D] to logits [..., classes]."""
        # Dropout before each of the two layers, as in RoBERTa.
        return super().forward(self.activation(self.dense(self.dropout(x))))


def build_head(spec: HeadSpec, width: int, table: Any) -> nn.Module:
    """Return the head of a spec, for a model of this width and table of embeddings."""
    if spec.kind == "masked_lm":
        return MaskedLMHead(spec, width, table)
    dropout = getattr(spec, "dropout", 0.0)
    if spec.kind == "sequence" and spec.source == "first":
        # BERT's descendants chose tanh, ELECTRA GELU, DistilBERT ReLU.
        own = spec.activation
        activation = torch.tanh if own == "tanh" else PLAIN_ACTIVATIONS[own]
        return DeepClassifier(width, spec.num_scores, dropout, activation)
    return Classifier(width, spec.num_scores, dropout)
