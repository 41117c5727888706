"""One query of one head through attention, with every number on the way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from heedful.inspect.captures import array, run
from heedful.inspect.maps import Part, choose, heads_of, module_of, sides, weight_addresses
from heedful.inspect.reading import Reading, tensors
from heedful.inspect.subject import Subject
from heedful.nn.capture import Capture


@dataclass(frozen=True, eq=False)
class AttentionSteps:
    """How one query comes to its answer.

    What a model computes in float32 (query, keys, values, bias, scores, weights, context) is from
    a pass; what lies between is worked out from it in float64.

    Args:
        address: of the attention, such as `decoder.3.cross`.
        head: from 0.
        row: of the query, from 0.
        rows: the tokens that look; in cross-attention, those predicted while looking.
        columns: the Lk tokens that are looked at.
        query: [E], turned by its position where the model does so.
        keys: [Lk, E], likewise.
        values: [Lk, Ev].
        factor: what products are multiplied with.
        softcap: what scaled scores are squashed to; None without.
        bias: [Lk] added to scores for where the tokens stand; None where nothing is.
        scores: [Lk] what softmax is taken of; −∞ for hidden keys.
        weights: [Lk].
        context: [Ev] what the head answers.
        rotary: whether queries and keys are turned by their positions.
        mask: what a query sees, as the end of a sentence.
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
        """[Lk, E]: the query and each key, channel by channel."""
        found: np.ndarray = self.keys.astype(np.float64) * self.query
        return found

    @property
    def raw(self) -> np.ndarray:
        """[Lk]: the sums of the products."""
        found: np.ndarray = self.products.sum(-1)
        return found

    @property
    def scaled(self) -> np.ndarray:
        """[Lk]: the sums, scaled and, where the model does so, squashed."""
        found: np.ndarray = self.factor * self.raw
        return found if self.softcap is None else self.softcap * np.tanh(found / self.softcap)

    @property
    def visible(self) -> np.ndarray:
        """[Lk]: which keys the query sees."""
        found: np.ndarray = np.isfinite(self.scores)
        return found

    @property
    def powers(self) -> np.ndarray:
        """[Lk]: e to the power of each score below the highest; 0 for hidden keys."""
        if not self.visible.any():
            return np.zeros(len(self.scores))
        found: np.ndarray = np.exp(self.scores.astype(np.float64) - self.scores.max())
        return found

    @property
    def parts(self) -> np.ndarray:
        """[Lk, Ev]: what each value brings to the answer."""
        found: np.ndarray = self.weights[:, None].astype(np.float64) * self.values
        return found


def attention_steps(
    subject: Subject, reading: Reading, part: Part, *, layer: int, head: int, row: int
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
    addresses = weight_addresses(subject.model, part)
    looking, looked_at = sides(reading, part)
    (layer,) = choose([layer], len(addresses), "layer")
    (head,) = choose([head], heads_of(subject.model, part), "head")
    (row,) = choose([row], len(looking), "row")
    module = module_of(subject.model, part, layer)
    address = addresses[layer].removesuffix(".weights")
    shared = module.num_heads // module.num_kv_heads
    capture = _One(address, head, head // shared, row)
    run(subject.model, tensors(subject, [reading]), capture)
    found = capture.arrays
    return AttentionSteps(
        address,
        head,
        row,
        looking.pieces,
        looked_at.pieces,
        query=found["query"],
        keys=found["key"],
        values=found["value"],
        factor=module.scale,
        softcap=module.softcap,
        bias=found.get("bias"),
        scores=found["scores"],
        weights=found["weights"],
        context=found["context"],
        rotary=module.rotary is not None,
        mask=module.mask.describe(),
    )


class _One(Capture):
    """Keeps of an attention what is of one head and one query."""

    def __init__(self, address: str, head: int, kv_head: int, row: int) -> None:
        super().__init__([f"{address}.*"])
        rowwise = ("query", "bias", "scores", "weights", "context")
        self.corners: dict[str, tuple[int, ...]] = dict.fromkeys(rowwise, (0, head, row))
        self.corners |= dict.fromkeys(("key", "value"), (0, kv_head))
        self.arrays: dict[str, np.ndarray] = {}

    def keep(self, address: str, value: Tensor) -> None:
        name = address.rpartition(".")[2]
        if name in self.corners:
            self.arrays[name] = array(value[self.corners[name]])
