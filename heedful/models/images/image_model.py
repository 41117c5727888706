"""The calls that all networks of images have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from heedful.errors import ModelError

if TYPE_CHECKING:
    from heedful.models.prediction_heads import Classifier


class ImageModel(nn.Module):
    """A network that turns images into states, and states into classes."""

    classifier: Classifier | None

    def pooled(self, states: Tensor) -> Tensor:
        """Return the vectors [B, D] of images from their states [B, n, D]."""
        return states.mean(dim=1)

    def class_logits(self, states: Tensor) -> Tensor:
        """Return logits [B, classes] of each image's class, from the states of `forward`.

        Raises:
            ModelError: when the model has no classifier.
        """
        if self.classifier is None:
            raise ModelError(
                "The model has no classifier",
                remedy="Fine-tune it on labelled images, or use its states",
            )
        logits: Tensor = self.classifier(self.pooled(states))
        return logits

    def stream_logits(self, hidden: Tensor) -> Tensor:
        """Return logits [B, classes] from normed states of any layer, [B, n, D]."""
        return self.class_logits(hidden)

    def predict(self, states: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
        """Return logits [B, classes]; other kinds of model use `positions` and `rows`."""
        return self.class_logits(states)
