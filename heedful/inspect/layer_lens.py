"""The logit lens: what a model would say if each layer were its last (nostalgebraist 2020)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from heedful.errors import ConfigError
from heedful.inspect.captures import run
from heedful.inspect.reading import Reading, tensors
from heedful.inspect.subject import Subject, looking, stack_of
from heedful.models.causal_lm import CausalLM
from heedful.models.encoder import EncoderModel
from heedful.models.stack import Stack
from heedful.models.translator import Translator
from heedful.models.vision import VisionModel
from heedful.nn.capture import Capture

_ROWS_AT_ONCE = 64
"""Of which the logits of a whole vocabulary are in float64 at a time."""


@dataclass(frozen=True, eq=False)
class Lens:
    """Predictions after the embedding and after each layer.

    Args:
        rows: the tokens read, at which something is predicted; the image as a whole.
        layers: `embedding`, then numbers of the layers.
        pieces: for each layer and row, the likeliest predictions, best first.
        probabilities: theirs, [layers, rows, top] float32.
        entropy: of all predictions, in nats, [layers, rows] float32.
        rank: at which place, from 0, each layer has what the last layer finds best,
            [layers, rows] int64.
        divergence: Kullback-Leibler divergence of each layer's predictions from the last layer's,
            in nats, [layers, rows] float32.
    """

    rows: tuple[str, ...]
    layers: tuple[str, ...]
    pieces: tuple[tuple[tuple[str, ...], ...], ...]
    probabilities: np.ndarray
    entropy: np.ndarray
    rank: np.ndarray
    divergence: np.ndarray

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        arrays = ("probabilities", "entropy", "rank", "divergence")
        return {
            "rows": list(self.rows),
            "layers": list(self.layers),
            "pieces": [[list(row) for row in layer] for layer in self.pieces],
            **{name: getattr(self, name).tolist() for name in arrays},
        }


def lens(subject: Subject, reading: Reading, *, top: int = 5) -> Lens:
    """Read predictions off every layer.

    Args:
        subject: a model that predicts pieces, or classes of images.
        reading: from `read` or `see`.
        top: predictions of each row.

    Raises:
        ModelError: when the model has no head that predicts them.
        ConfigError: when no predictions are asked for.
    """
    if top < 1:
        raise ConfigError("At least one prediction must be asked for", where=f"top = {top}")
    *layers, last = layer_logits(subject, reading)
    final = last()
    rows, size, name = _naming(subject, reading, final.shape[-1])
    final = final[:, :size]
    looks = [_look(layer()[:, :size], final, top) for layer in layers]
    looks.append(_look(final, final, top))
    ids, *numbers = (torch.stack(column) for column in zip(*looks, strict=True))
    return Lens(
        rows,
        ("embedding", *map(str, range(len(layers)))),
        tuple(tuple(tuple(name(row)) for row in layer) for layer in ids.tolist()),
        *(each.numpy() for each in numbers),
    )


def layer_logits(subject: Subject, reading: Reading) -> list[Callable[[], Tensor]]:
    """Scores [rows, V] read off the embedding and each layer, each made when it is called for.

    The last are the model's own.
    """
    model = subject.model
    stack = stack_of(model, "encoder" if reading.decoder is None else "decoder")
    places = [f"{stack.name}.embedding"]
    places += [f"{stack.name}.{layer}.output" for layer in range(len(stack.blocks))]
    capture = Capture(places)
    run(model, tensors(subject, [reading]), capture)

    def read(place: str) -> Tensor:
        with looking(model):
            logits = read_out(model, stack, capture.found[place])
        return logits.reshape(-1, logits.shape[-1]).cpu()

    return [partial(read, place) for place in places]


def _naming(
    subject: Subject, reading: Reading, size: int
) -> tuple[tuple[str, ...], int, Callable[[Sequence[int]], Sequence[str]]]:
    """What rows are of, how many predictions there are of `size`, and what they are called."""
    model = subject.model
    if isinstance(model, VisionModel):
        classes = model.spec.class_names
        return ("image",), size, lambda ids: [classes[id] for id in ids]
    side = reading.encoder if reading.decoder is None else reading.decoder
    assert side is not None
    # Rows of the table that are no piece are no predictions.
    return side.pieces, min(subject.target.size, size), subject.target.pieces


def _look(logits: Tensor, final: Tensor, top: int) -> tuple[Tensor, ...]:
    """What a layer's logits [rows, V] say: ids, probabilities, entropy, rank and divergence."""
    parts: list[tuple[Tensor, ...]] = []
    for first in range(0, len(logits), _ROWS_AT_ONCE):
        chunk = slice(first, first + _ROWS_AT_ONCE)
        logs = logits[chunk].double().log_softmax(-1)
        finals = final[chunk].double().log_softmax(-1)
        best = logs.topk(min(top, logs.shape[-1]), dim=-1)
        answer = logs.gather(-1, finals.argmax(-1, keepdim=True))
        parts.append(
            (
                best.indices,
                best.values.exp().float(),
                -(logs.exp() * logs).sum(-1).float(),
                (logs > answer).sum(-1),
                (finals.exp() * (finals - logs)).sum(-1).float(),
            )
        )
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))


def read_out(model: nn.Module, stack: Stack, stream: Tensor) -> Tensor:
    """What a model makes of a stream [B, L, D] behind its last block: logits [B, L, V].

    For images [B, classes].
    """
    states: Tensor = stream if stack.final_norm is None else stack.final_norm(stream)
    if isinstance(model, Translator):
        scale = model.spec.output_scale
        return model.logits(states if scale is None else states * scale)
    if isinstance(model, CausalLM):
        return model.logits(states)
    if isinstance(model, EncoderModel):
        return model.masked_lm_logits(states)
    assert isinstance(model, VisionModel)
    return model.class_logits(states)
