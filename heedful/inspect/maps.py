"""Attention of any layer, head and rows, as arrays with the tokens they are about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from torch import Tensor, nn

from heedful.errors import ConfigError, ModelError
from heedful.inspect.captures import array, run
from heedful.inspect.reading import Reading, Tokens, tensors
from heedful.inspect.subject import Subject, stack_of
from heedful.models.block import Block
from heedful.nn.attention import Attention
from heedful.nn.capture import Capture

Part = Literal["encoder", "decoder", "cross"]
"""Self-attention of the encoder, of the decoder, or the decoder's attention over the source."""


MOST_CELLS = 1 << 28
"""Most weights of a map: a GiB."""


@dataclass(frozen=True, eq=False)
class AttentionMap:
    """Attention weights and what their rows and columns stand for.

    Args:
        part: whose attention.
        layers: numbers of the layers, from 0.
        heads: numbers of the heads, from 0.
        rows: the tokens that look. In cross-attention, those predicted while looking.
        columns: the tokens that are looked at.
        weights: [layers, heads, rows, columns] float32; a row sums to 1. Heads that were pruned
            have zeros.
    """

    part: Part
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    weights: np.ndarray

    def mean(self) -> np.ndarray:
        """[rows, columns]: the mean of all layers and heads there are; not of pruned ones."""
        there = np.float32(max(1, self.weights.any((2, 3)).sum()))
        mean: np.ndarray = self.weights.sum((0, 1)) / there
        return mean

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "part": self.part,
            "layers": list(self.layers),
            "heads": list(self.heads),
            "rows": list(self.rows),
            "columns": list(self.columns),
            "weights": self.weights.tolist(),
        }


def attention(
    subject: Subject,
    reading: Reading,
    part: Part | None = None,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    rows: Sequence[int] | None = None,
) -> AttentionMap:
    """Attention while a model reads, recomputed from its definition.

    Args:
        subject: the model.
        reading: from `read` or `see`.
        part: `encoder`, `decoder` or `cross`; cross where there is any, else the only one, if None.
        layers: which, from 0; all if None.
        heads: which, from 0; all if None.
        rows: which, from 0; all if None.

    Raises:
        ModelError: when the model has no such attention.
        ConfigError: when it has no such layer, head or row, or more is asked for than can be kept.
    """
    part = part or parts_of(subject.model)[-1]
    addresses = weight_addresses(subject.model, part)
    looking, looked_at = sides(reading, part)
    num_heads = heads_of(subject.model, part)
    chosen_layers = choose(layers, len(addresses), "layer")
    chosen_heads = choose(heads, num_heads, "head")
    chosen_rows = choose(rows, len(looking), "row")
    cells = len(chosen_layers) * len(chosen_heads) * len(chosen_rows) * len(looked_at)
    if cells > MOST_CELLS:
        raise ConfigError(
            f"{cells:,} weights are more than the {MOST_CELLS:,} that are kept at once",
            remedy="Choose layers, heads or rows, or give a shorter text",
        )
    chosen = [addresses[layer] for layer in chosen_layers]
    capture = _Corners(chosen, np.ix_(chosen_heads, chosen_rows))
    run(subject.model, tensors(subject, [reading]), capture)
    return AttentionMap(
        part,
        chosen_layers,
        chosen_heads,
        tuple(looking.pieces[row] for row in chosen_rows),
        looked_at.pieces,
        np.stack([capture.corners[address] for address in chosen]),
    )


def parts_of(model: nn.Module) -> tuple[Part, ...]:
    """The kinds of attention that a model has."""
    return tuple(part for part in get_args(Part) if _has(model, part))


def weight_addresses(model: nn.Module, part: Part) -> list[str]:
    """Where each layer's weights are.

    Raises:
        ModelError: when the model has no such attention.
        ConfigError: when there is no such part at all.
    """
    if part not in get_args(Part):
        raise ConfigError(
            f"There is no attention called {part!r}",
            remedy=f"There are {', '.join(get_args(Part))}",
        )
    if not _has(model, part):
        raise ModelError(
            f"The model has no {part} attention",
            remedy=f"It has: {', '.join(parts_of(model))}",
        )
    stack, kind = place_of(part)
    count = len(stack_of(model, stack).blocks)
    return [f"{stack}.{layer}.{kind}.weights" for layer in range(count)]


def place_of(part: Part) -> tuple[str, str]:
    """The stack that looks, and what its attention is called in addresses."""
    return ("decoder", "cross") if part == "cross" else (part, "self")


def heads_of(model: nn.Module, part: Part) -> int:
    """How many heads each layer of a part has."""
    return module_of(model, part).num_heads


def module_of(model: nn.Module, part: Part, layer: int = 0) -> Attention:
    """What computes a part in a layer."""
    stack, kind = place_of(part)
    block = stack_of(model, stack).blocks[layer]
    assert isinstance(block, Block)
    module = block.cross_attention if kind == "cross" else block.self_attention
    assert module is not None
    return module


def sides(reading: Reading, part: Part) -> tuple[Tokens, Tokens]:
    """What a part's rows and columns stand for."""
    if part == "cross":
        assert reading.predicted is not None and reading.encoder is not None
        return reading.predicted, reading.encoder
    side = reading.encoder if part == "encoder" else reading.decoder
    assert side is not None
    return side, side


def choose(wanted: Sequence[int] | None, count: int, name: str) -> tuple[int, ...]:
    """Numbers that exist.

    Raises:
        ConfigError: naming the one that does not.
    """
    if wanted is None:
        return tuple(range(count))
    for number in wanted:
        if not 0 <= number < count:
            raise ConfigError(
                f"There is no {name} {number}", remedy=f"They are numbered from 0 to {count - 1}"
            )
    return tuple(wanted)


class _Corners(Capture):
    """Keeps of each layer's weights, [1, H, Lq, Lk], only the heads and rows that are asked for."""

    def __init__(self, wanted: Sequence[str], corner: tuple[np.ndarray, ...]) -> None:
        super().__init__(wanted)
        self.corner = corner
        self.corners: dict[str, np.ndarray] = {}

    def keep(self, address: str, value: Tensor) -> None:
        self.corners[address] = array(value)[0][self.corner]


def _has(model: nn.Module, part: Part) -> bool:
    stack = getattr(model, place_of(part)[0], None)
    if stack is None:
        return False
    return part != "cross" or stack.blocks[0].cross_attention is not None
