"""Buffers that a pass in training changes, such as the running statistics of batch normalisation.

Weights change once, when an update is made; these change with every pass. An attempt that failed, a
cancelled or skipped update and a pass that only looks must leave nothing behind, so the values from
before are put back. Where a batch is computed in parts, each part counts as a pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class PassBuffers:
    """The persistent buffers of a model, and their values before an update.

    Args:
        model: model to train; most have no such buffers.
    """

    def __init__(self, model: nn.Module) -> None:
        self._buffers = [
            buffer
            for module in model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None and name not in module._non_persistent_buffers_set
        ]
        self._kept: list[Tensor] = []

    def keep(self) -> None:
        """Remember the present values."""
        self._kept = [buffer.clone() for buffer in self._buffers]

    def restore(self, where: Tensor | None = None) -> None:
        """Put the remembered values back.

        Args:
            where: [] on the device, not 0 if they are put back; always if None.
        """
        with torch.no_grad():
            for buffer, kept in zip(self._buffers, self._kept, strict=True):
                # Chosen on the device: reading the flag would wait for the update.
                buffer.copy_(kept if where is None else torch.where(where != 0, kept, buffer))

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """A context whose passes leave the buffers as they were."""
        self.keep()
        try:
            yield
        finally:
            self.restore()
