"""Attention weights of any layer, head and query as arrays, and one query followed step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from heedful.errors import ConfigError, ModelError
from heedful.inspect.drawings import word_links
from heedful.inspect.readings import ModelInput, StackTokens, tensors
from heedful.inspect.subject import (
    InspectedSubLayer,
    Reduced,
    Result,
    Subject,
    array,
    run,
    stack_of,
    sublayers,
)
from heedful.nn.positions import Positions
from heedful.search.alignment import Alignment, draw_alignment

if TYPE_CHECKING:
    from heedful.models.build import AnyModel


AttentionPart = Literal["encoder", "decoder", "cross"]
"""Self-attention of the encoder, of the decoder, or the decoder's attention to the source."""

MOST_CELLS = 1 << 28
"""Upper bound of the weights in one map: 1 GiB of float32."""

_TITLES: dict[AttentionPart, str] = {
    "encoder": "Attention of the encoder",
    "decoder": "Attention of the decoder to itself",
    "cross": "Attention of the decoder (rows: what it writes) to the source",
}


@dataclass(frozen=True, eq=False, repr=False)
class AttentionMap(Result):
    """Attention weights with the tokens of their rows and columns.

    Args:
        part: kind of attention.
        layers: indices of the layers, from 0.
        heads: indices of the heads, from 0.
        rows: tokens of the queries; in cross-attention, the tokens that are predicted there.
        columns: tokens of the keys.
        weights: [layers, heads, rows, columns] float32; a row sums to 1. Pruned heads, and heads
            that a layer does not have, are zeros.
    """

    part: AttentionPart
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    weights: np.ndarray

    def mean(self) -> np.ndarray:
        """Return weights [rows, columns], the mean over all layers and all heads not pruned."""
        # A pruned head is all zeros, and would pull the mean down; softmax never gives such a map.
        count = np.float32(max(1, self.weights.any((2, 3)).sum()))
        return np.asarray(self.weights.sum((0, 1)) / count)

    def __repr__(self) -> str:
        layers, heads, rows, columns = self.weights.shape
        return (
            f"AttentionMap({self.part}: {layers} layers, {heads} heads, {rows} rows, "
            f"{columns} columns)"
        )

    def _repr_html_(self) -> str:
        """The mean over layers and heads as lines between words, as the studio draws it."""
        layers = ", ".join(str(each + 1) for each in self.layers)
        heads = ", ".join(str(each + 1) for each in self.heads)
        title = f"{self.part} attention, layers {layers}, the mean of heads {heads}"
        rows, columns = ([*map(printable, side)] for side in (self.rows, self.columns))
        return word_links(rows, columns, self.mean(), title)


def attention(
    subject: Subject,
    reading: ModelInput,
    part: AttentionPart | None = None,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    rows: Sequence[int] | None = None,
) -> AttentionMap:
    """Recompute attention weights of a pass from their definition.

    Args:
        subject: the model.
        reading: input from `read` or `see`.
        part: kind of attention; None for `cross` where the model has it, else its only kind.
        layers: indices of layers; all if None.
        heads: indices of heads; all if None.
        rows: indices of queries; all if None.

    Raises:
        ModelError: when the model has no such attention.
        ConfigError: when the model has no such layer, head or query, or the map has more than
            `MOST_CELLS` weights.
    """
    part = part or usual_part(subject.model)
    modules = attentions(subject.model, part)
    queries, keys = rows_and_columns(reading, part)
    chosen_layers = choose(layers, len(modules), "layer")
    chosen_heads = choose(heads, num_heads(modules), "head")
    chosen_rows = choose(rows, len(queries), "row")
    # Checked before the pass: weights of 12 layers, 16 heads and 4,096 tokens would be 12 GiB.
    cells = len(chosen_layers) * len(chosen_heads) * len(chosen_rows) * len(keys)
    if cells > MOST_CELLS:
        raise ConfigError(
            f"{cells:,} weights are more than the {MOST_CELLS:,} that are kept at once",
            remedy="Choose layers, heads or rows, or give a shorter text",
        )
    addresses = [f"{[*modules][layer]}.weights" for layer in chosen_layers]
    count, index = num_heads(modules), np.ix_(chosen_heads, chosen_rows)

    def chosen(_: str, weights: Tensor) -> np.ndarray:
        # Layers may differ in heads; padding first lets one index serve all. An index of arrays
        # copies, so the whole map is freed.
        return np.asarray(with_heads(array(weights), count)[0][index])

    # Sliced during the pass, since whole maps of all layers at once need far more memory.
    capture = Reduced(addresses, chosen)
    run(subject.model, tensors(subject, [reading]), capture)
    return AttentionMap(
        part,
        chosen_layers,
        chosen_heads,
        tuple(queries.pieces[row] for row in chosen_rows),
        keys.pieces,
        np.stack([capture.results[address] for address in addresses]),
    )


def parts_of(model: AnyModel) -> tuple[AttentionPart, ...]:
    """Return the kinds of attention of a model."""
    return tuple(part for part in get_args(AttentionPart) if _layers(model, part))


def usual_part(model: AnyModel) -> AttentionPart:
    """Return `cross`, else the only kind of attention; raise a `ModelError` if there is none."""
    parts = parts_of(model)
    if not parts:
        raise ModelError(
            "No layer of this model has attention weights",
            remedy="See who hears whom in it by `influence`; in the studio, on the page Attention",
        )
    # Kinds have the order of `AttentionPart`, where cross comes last.
    return parts[-1]


def attentions(model: AnyModel, part: AttentionPart) -> dict[str, InspectedSubLayer]:
    """Return the attention of each layer by its address, such as `decoder.3.cross`.

    Linear attention is included: its weights are defined, though its kernel never forms them.

    Raises:
        ModelError: when the model has no such attention.
        ConfigError: when there is no kind of attention of this name.
    """
    if part not in get_args(AttentionPart):
        raise ConfigError(
            f"There is no attention called {part!r}",
            remedy=f"There are {', '.join(get_args(AttentionPart))}",
        )
    modules = _layers(model, part)
    if not modules:
        raise ModelError(
            f"The model has no {part} attention",
            remedy=f"It has: {', '.join(parts_of(model)) or 'none at all'}",
        )
    return modules


def num_heads(layers: dict[str, InspectedSubLayer]) -> int:
    """Return the largest number of heads among layers from `attentions`."""
    return max(int(layer.module.num_heads) for layer in layers.values())


def _layers(model: AnyModel, part: AttentionPart) -> dict[str, InspectedSubLayer]:
    cross = part == "cross"
    # Cross-attention belongs to the blocks of the decoder; the encoder only gives keys and values.
    stack = "decoder" if cross else part
    if stack not in model.stacks():
        return {}
    return {
        f"{stack}.{n}.{address}": sublayer
        for n, block in enumerate(stack_of(model, stack).blocks)
        for address, sublayer in sublayers(block).items()
        if sublayer.has_heads and sublayer.is_cross == cross
    }


def visible_positions(model: AnyModel, query: int, count: int) -> tuple[bool, ...]:
    """Return for each of the first `count` positions whether the decoder's query sees it.

    A recurrent decoder without self-attention sees all positions up to its own, through its state.
    """
    layers = _layers(model, "decoder")
    if not layers:
        return tuple(place <= query for place in range(count))
    positions = Positions(torch.tensor([[query]]), torch.arange(count)[None])  # [B, Lq], [B, Lk]
    # The first layer stands for all; with alternating local and global layers (Gemma 2), later ones
    # may see more or less.
    layer = next(iter(layers.values()))
    visible: list[bool] = positions.visible(layer.mask)[0, 0, 0].tolist()
    return tuple(visible)


def rows_and_columns(reading: ModelInput, part: AttentionPart) -> tuple[StackTokens, StackTokens]:
    """Return the tokens of the queries (rows) and of the keys (columns)."""
    if part == "cross":
        # A query of cross-attention is labelled by the token it predicts, which is the one that
        # attends to its source words; the token it was fed is one row earlier.
        assert reading.predicted is not None
        return reading.predicted, reading.tokens("encoder")
    return reading.tokens(part), reading.tokens(part)


def choose(chosen: Sequence[int] | None, count: int, name: str) -> tuple[int, ...]:
    """Return chosen indices, or all; raise a `ConfigError` for one that is not below a count."""
    if chosen is None:
        return tuple(range(count))
    for number in chosen:
        if not 0 <= number < count:
            raise ConfigError(
                f"There is no {name} with index {number}",
                remedy=f"Indices go from 0 to {count - 1}",
            )
    return tuple(chosen)


def choose_layer(layer: int, count: int) -> int:
    """Return the index of a layer, −1 for the last; raise a `ConfigError` if there is none."""
    return count - 1 if layer == -1 else choose([layer], count, "layer")[0]


def with_heads(weights: np.ndarray, count: int) -> np.ndarray:
    """Pad weights [B, H, Lq, Lk] with zero heads up to `count` heads."""
    missing = count - weights.shape[1]
    return np.pad(weights, ((0, 0), (0, missing), (0, 0), (0, 0))) if missing else weights


def draw_attention(attention: AttentionMap, *, width: int = 100) -> str:
    """Draw a map's mean over layers and heads as shades, `width` columns wide, under a title."""
    mean = attention.mean()
    # Scaled to the darkest cell: a row of 100 even weights would be blank at the scale of 1.
    most = float(mean.max())
    shades = tuple(tuple(row) for row in (mean / (most or 1.0)).tolist())
    columns, rows = (tuple(map(printable, side)) for side in (attention.columns, attention.rows))
    title = f"{_TITLES[attention.part]}; {describe_mean(attention)}; darkest is {most:.2f}"
    return f"{title}\n{draw_alignment(Alignment(columns, rows, shades), width=width)}"


def describe_mean(attention: AttentionMap) -> str:
    """Describe in words the layers and heads that a map's mean is taken over."""
    return f"{_numbered('layer', attention.layers)}, {_numbered('head', attention.heads)}"


def _numbered(name: str, numbers: tuple[int, ...]) -> str:
    if len(numbers) == 1:
        return f"{name} {numbers[0]}"
    in_a_row = numbers == tuple(range(numbers[0], numbers[-1] + 1))
    listed = f"{numbers[0]} to {numbers[-1]}" if in_a_row else ", ".join(map(str, numbers))
    return f"mean of {name}s {listed}"


def printable(piece: str) -> str:
    """Return a token's text without characters that would move the cursor or break the line."""
    escaped = piece.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")
    # Some tokens are bytes of a character, or escape sequences that would recolour the terminal.
    return "".join(c if c.isprintable() else "\ufffd" for c in escaped) or "·"


@dataclass(frozen=True, eq=False)
class AttentionSteps:
    """One query of one head, from its dot products with the keys to its output.

    Query, keys, values, bias, scores, weights and context are captured from a pass in float32; the
    properties are computed from them in float64.

    Args:
        address: address of the attention, e.g. `decoder.3.cross`.
        head: index of the head.
        row: index of the query.
        rows: tokens of the queries; in cross-attention, the tokens that are predicted there.
        columns: tokens of the Lk keys.
        query: [E] query, after rotary embedding where the model has it.
        keys: [Lk, E] keys, after rotary embedding where the model has it.
        values: [Lk, Ev] values.
        factor: scale of the dot products.
        softcap: bound of the scaled scores (Gemma 2); None without.
        bias: [Lk] position bias added to the scores; None without.
        scores: [Lk], the input of the softmax; −∞ for hidden keys.
        weights: [Lk] softmax of the scores.
        context: [Ev] output of the head.
        rotary: flag of rotary position embedding.
        mask: description of the keys that a query sees, as the end of a sentence.
    """

    address: str
    head: int
    row: int
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    query: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    factor: float
    softcap: float | None
    bias: np.ndarray | None
    scores: np.ndarray
    weights: np.ndarray
    context: np.ndarray
    rotary: bool
    mask: str

    @property
    def products(self) -> np.ndarray:
        """Elementwise products [Lk, E] of the query and each key."""
        return np.asarray(self.keys.astype(np.float64) * self.query)

    @property
    def raw(self) -> np.ndarray:
        """Dot products [Lk] of the query and the keys."""
        return np.asarray(self.products.sum(-1))

    @property
    def scaled(self) -> np.ndarray:
        """Dot products [Lk] after the scale and, where the model has one, the soft cap."""
        scaled: np.ndarray = self.factor * self.raw
        # Gemma 2 (2024): c * tanh(scores / c) before the mask, so scores never exceed c.
        return scaled if self.softcap is None else self.softcap * np.tanh(scaled / self.softcap)

    @property
    def visible(self) -> np.ndarray:
        """Mask of the keys that the query sees [Lk]."""
        # Hidden keys have a score of −∞; no other score is infinite.
        return np.asarray(np.isfinite(self.scores))

    @property
    def exponentials(self) -> np.ndarray:
        """Exponentials [Lk] of the scores minus their maximum; 0 for hidden keys."""
        # A query without any visible key has weights of 0; −∞ minus −∞ would be NaN.
        if not self.visible.any():
            return np.zeros(len(self.scores))
        return np.asarray(np.exp(self.scores.astype(np.float64) - self.scores.max()))

    @property
    def parts(self) -> np.ndarray:
        """Weighted values [Lk, Ev], whose sum is the output of the head."""
        return np.asarray(self.weights[:, None].astype(np.float64) * self.values)


def attention_steps(
    subject: Subject, reading: ModelInput, part: AttentionPart, *, layer: int, head: int, row: int
) -> AttentionSteps:
    """Follow one query of one head from its scores to its output.

    Args:
        subject: the model.
        reading: input from `read` or `see`.
        part: kind of attention.
        layer: index of the layer.
        head: index of the head.
        row: index of the query.

    Raises:
        ModelError: when the model has no such attention, or the attention has no softmax.
        ConfigError: when there is no such layer, head or query.
    """
    modules = attentions(subject.model, part)
    queries, keys = rows_and_columns(reading, part)
    (layer,) = choose([layer], len(modules), "layer")
    address, sublayer = [*modules.items()][layer]
    (head,) = choose([head], sublayer.module.num_heads, "head")
    (row,) = choose([row], len(queries), "row")
    if not sublayer.has_softmax:
        name = "attention by a score function" if sublayer.is_cross else "linear attention"
        raise ModelError(
            f"{address} is {name}, without a softmax of products of queries and keys to follow",
            remedy="Look at its weights, by `attention`",
        )
    module = sublayer.module
    # Grouped-query attention (Ainslie 2023): consecutive query heads share a key/value head.
    kv_head = head // (module.num_heads // module.num_kv_heads)
    # Tensors [1, H, Lq, ·] have a row per query; keys and values have a row per key instead.
    queried = ("query", "bias", "scores", "weights", "context")
    indices: dict[str, tuple[int, ...]] = dict.fromkeys(queried, (0, head, row))
    indices |= dict.fromkeys(("key", "value"), (0, kv_head))

    def one_query(place: str, value: Tensor) -> np.ndarray | None:
        index = indices.get(place.rpartition(".")[2])
        return None if index is None else array(value[index])

    capture = Reduced([f"{address}.*"], one_query)
    run(subject.model, tensors(subject, [reading]), capture)
    arrays: dict[str, Any] = {
        place.rpartition(".")[2]: each for place, each in capture.results.items()
    }
    return AttentionSteps(
        address,
        head,
        row,
        queries.pieces,
        keys.pieces,
        query=arrays["query"],
        keys=arrays["key"],
        values=arrays["value"],
        factor=module.scale,
        softcap=module.softcap,
        bias=arrays.get("bias"),
        scores=arrays["scores"],
        weights=arrays["weights"],
        context=arrays["context"],
        rotary=module.rotary is not None,
        mask=module.mask.describe(),
    )
