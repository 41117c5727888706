"""One query of one head through attention, with every number on the way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from heedful.inspect.attention_maps import AttentionPart, attentions, choose, num_heads, sides
from heedful.inspect.captures import array, run
from heedful.inspect.readings import Reading, tensors
from heedful.inspect.subject import Subject
from heedful.nn.capture import Capture


@dataclass(frozen=True, eq=False)
class AttentionSteps:
    """The stages from a query to its output.

    Query, keys, values, bias, scores, weights and context are those of a pass in float32; the
    stages between are computed from them in float64.

    Args:
        address: of the attention, such as `decoder.3.cross`.
        head: from 0.
        row: of the query, from 0.
        rows: tokens of the queries; in cross-attention, those predicted by them.
        columns: tokens of the Lk keys.
        query: [E], rotated by its position where the model does so.
        keys: [Lk, E], likewise.
        values: [Lk, Ev].
        factor: the scale of the scores.
        softcap: bound of the scaled scores; None without.
        bias: [Lk] added to scores by position; None where there is none.
        scores: [Lk], the input of the softmax; −∞ for hidden keys.
        weights: [Lk].
        context: [Ev], the output of the head.
        rotary: whether queries and keys are rotated by their positions.
        mask: the keys that a query sees, as the end of a sentence.
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
        """Products [Lk, E] of the query and each key, channel by channel."""
        products: np.ndarray = self.keys.astype(np.float64) * self.query
        return products

    @property
    def raw(self) -> np.ndarray:
        """Dot products [Lk]."""
        raw: np.ndarray = self.products.sum(-1)
        return raw

    @property
    def scaled(self) -> np.ndarray:
        """Dot products [Lk], scaled and, where the model does so, capped."""
        scaled: np.ndarray = self.factor * self.raw
        return scaled if self.softcap is None else self.softcap * np.tanh(scaled / self.softcap)

    @property
    def visible(self) -> np.ndarray:
        """Mask of the keys that the query sees [Lk]."""
        visible: np.ndarray = np.isfinite(self.scores)
        return visible

    @property
    def exponentials(self) -> np.ndarray:
        """The exponential [Lk] of each score less the highest; 0 for hidden keys."""
        if not self.visible.any():
            return np.zeros(len(self.scores))
        exponentials: np.ndarray = np.exp(self.scores.astype(np.float64) - self.scores.max())
        return exponentials

    @property
    def parts(self) -> np.ndarray:
        """The share [Lk, Ev] of each value in the output."""
        parts: np.ndarray = self.weights[:, None].astype(np.float64) * self.values
        return parts


def attention_steps(
    subject: Subject, reading: Reading, part: AttentionPart, *, layer: int, head: int, row: int
) -> AttentionSteps:
    """Follow one query of one head.

    Args:
        subject: the model.
        reading: from `read` or `see`.
        part: `encoder`, `decoder` or `cross`.
        layer: from 0.
        head: from 0.
        row: the query, from 0.

    Raises:
        ModelError: when the model has no such attention.
        ConfigError: when it has no such layer, head or row.
    """
    modules = attentions(subject.model, part)
    queries, keys = sides(reading, part)
    (layer,) = choose([layer], len(modules), "layer")
    (head,) = choose([head], num_heads(modules), "head")
    (row,) = choose([row], len(queries), "row")
    address, module = [*modules.items()][layer]
    kv_head = head // (module.num_heads // module.num_kv_heads)
    capture = _OneQuery(address, head, kv_head, row)
    run(subject.model, tensors(subject, [reading]), capture)
    arrays = capture.arrays
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


class _OneQuery(Capture):
    """Keeps the tensors of an attention for one head and one query."""

    def __init__(self, address: str, head: int, kv_head: int, row: int) -> None:
        super().__init__([f"{address}.*"])
        rowwise = ("query", "bias", "scores", "weights", "context")
        self.indices: dict[str, tuple[int, ...]] = dict.fromkeys(rowwise, (0, head, row))
        self.indices |= dict.fromkeys(("key", "value"), (0, kv_head))
        self.arrays: dict[str, np.ndarray] = {}

    def keep(self, address: str, value: Tensor) -> None:
        name = address.rpartition(".")[2]
        if name in self.indices:
            self.arrays[name] = array(value[self.indices[name]])
