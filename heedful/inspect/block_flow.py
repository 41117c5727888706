"""The way through a block: every part of it, what it reads, its shape and how large it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from torch import nn

from heedful.errors import ConfigError
from heedful.inspect.captures import capture
from heedful.inspect.reading import Reading, tensors
from heedful.inspect.subject import Subject, stack_of
from heedful.models.block import Block
from heedful.models.spec import StackSpec
from heedful.models.stack import Stack
from heedful.nn.attention import Attention
from heedful.nn.feedforward import FeedForward
from heedful.nn.norms import RMSNorm

Role = Literal[
    "stream",
    "memory",
    "norm",
    "query",
    "key",
    "value",
    "bias",
    "scores",
    "weights",
    "context",
    "inner",
    "routing",
    "output",
    "sum",
]

_NAMES = {"self": "self-attention", "cross": "cross-attention", "feedforward": "the feed-forward"}


@dataclass(frozen=True, eq=False)
class FlowPart:
    """A tensor on the way through a block.

    Args:
        key: its name in the block, such as `self.query`.
        role: what it is.
        place: the sub-layer it belongs to, `self`, `cross` or `feedforward`; empty for the stream
            that comes in and goes out.
        on_stream: whether it is the stream itself, and not on the way into or out of a sub-layer.
        address: where a capture finds it, such as `encoder.2.self.query`.
        reads: keys of what it is made from.
        shape: of the tensor, the batch of one in front.
        axes: what the numbers of the shape count.
        tokens: the pieces that its vectors or rows belong to.
        sizes: [tokens] float32, the length of each token's vector, the mean over heads where there
            are several; None for what are no vectors of tokens.
        figures: numbers that sum it up, by name.
        about: what it does, in a sentence.
    """

    key: str
    role: Role
    place: str
    on_stream: bool
    address: str
    reads: tuple[str, ...]
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    tokens: tuple[str, ...]
    sizes: np.ndarray | None
    figures: dict[str, float]
    about: str

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        sizes = None if self.sizes is None else self.sizes.tolist()
        return {**self.__dict__, "sizes": sizes}


@dataclass(frozen=True, eq=False)
class BlockFlow:
    """A block, as the parts that a pass goes through in order.

    Args:
        stack: `encoder` or `decoder`.
        layer: from 0.
        norm_first: whether norms stand before the sub-layers, on the way into them; else they
            stand after the sums, on the stream itself.
        parts: each after all that it reads.
    """

    stack: str
    layer: int
    norm_first: bool
    parts: tuple[FlowPart, ...]

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return {**self.__dict__, "parts": [part.plain() for part in self.parts]}


def block_flow(
    subject: Subject, reading: Reading, stack: str | None = None, layer: int = -1
) -> BlockFlow:
    """Follow an input through a block.

    Args:
        subject: the model.
        reading: from `read` or `see`.
        stack: `encoder` or `decoder`; the decoder where there is one, if None.
        layer: from 0; −1 is the last.

    Raises:
        ModelError: when the model has no such stack.
        ConfigError: when the stack has no such layer.
    """
    name = stack or ("encoder" if reading.decoder is None else "decoder")
    found = stack_of(subject.model, name)
    count = len(found.blocks)
    if not -1 <= layer < count:
        raise ConfigError(
            f"There is no layer {layer}", remedy=f"The {name}'s layers are 0 to {count - 1}"
        )
    number = count - 1 if layer < 0 else layer
    spec: StackSpec = getattr(subject.model.spec, name)
    plan = _Plan(found, name, number, spec.block.feedforward.activation)
    values = capture(
        subject.model, tensors(subject, [reading]), [step.address for step in plan.steps]
    )
    side = reading.encoder if name == "encoder" else reading.decoder
    assert side is not None
    memory = () if reading.encoder is None else reading.encoder.pieces
    parts = tuple(
        _measured(step, values[step.address], memory if step.of_memory else side.pieces)
        for step in plan.steps
    )
    return BlockFlow(name, number, plan.block.norm_first, parts)


@dataclass(frozen=True)
class _Step:
    key: str
    role: Role
    place: str
    address: str
    reads: tuple[str, ...]
    about: str
    on_stream: bool = False
    of_memory: bool = False
    heads: tuple[int, ...] | None = None


@dataclass
class _Plan:
    """The steps through a block, from its modules."""

    stack: Stack
    name: str
    layer: int
    activation: str
    steps: list[_Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        block = self.stack.blocks[self.layer]
        assert isinstance(block, Block)
        self.block = block
        before = "embedding" if self.layer == 0 else f"{self.layer - 1}.output"
        origin = "the embedded tokens" if self.layer == 0 else f"what block {self.layer - 1} left"
        self.stream = "input"
        self.add(
            "input",
            "stream",
            f"{self.name}.{before}",
            (),
            f"The stream comes in: {origin}.",
            on_stream=True,
        )
        self.attention("self", block.self_attention, block.self_attention_norm)
        if block.cross_attention is not None:
            assert block.cross_attention_norm is not None
            self.attention("cross", block.cross_attention, block.cross_attention_norm)
        self.feedforward()
        goes_on = "The stream goes on to the next block."
        last = self.layer == len(self.stack.blocks) - 1
        if last:
            goes_on = "The stream leaves the last block."
        self.add(
            "output",
            "stream",
            f"{self.name}.{self.layer}.output",
            (self.stream,),
            goes_on,
            on_stream=True,
        )
        if last and self.stack.final_norm is not None:
            about = f"{_norm_name(self.stack.final_norm)} of the stream, after the last block."
            self.add(
                "final.norm", "norm", f"{self.name}.output", ("output",), about, on_stream=True
            )

    def add(
        self, key: str, role: Role, address: str, reads: Sequence[str], about: str, **more: Any
    ) -> str:
        place = key.partition(".")[0] if "." in key else ""
        self.steps.append(_Step(key, role, place, address, tuple(reads), about, **more))
        return key

    def own(self, key: str, role: Role, reads: Sequence[str], about: str, **more: Any) -> str:
        """A part whose address is its key in the block."""
        return self.add(key, role, f"{self.name}.{self.layer}.{key}", reads, about, **more)

    def entered(self, place: str, norm: nn.Module) -> str:
        """What a sub-layer reads: the stream, or the stream normed on the way in."""
        if not self.block.norm_first:
            return self.stream
        about = (
            f"{_norm_name(norm)} of the stream, for {_NAMES[place]} alone: "
            "the stream itself goes on as it is."
        )
        address = f"{self.name}.{self.layer}.{place}.input"
        return self.add(f"{place}.norm", "norm", address, (self.stream,), about)

    def left(self, place: str, norm: nn.Module) -> None:
        """What a sub-layer says is added to the stream, which is then normed or is not."""
        address = f"{self.name}.{self.layer}.{place}"
        about = f"The residual connection: what {_NAMES[place]} says is added to the stream."
        reads = (self.stream, f"{place}.output")
        self.stream = self.add(
            f"{place}.sum", "sum", f"{address}.residual", reads, about, on_stream=True
        )
        if not self.block.norm_first:
            about = f"{_norm_name(norm)} of the sum: from here on, this is the stream."
            self.stream = self.add(
                f"{place}.norm", "norm", f"{address}.stream", (self.stream,), about, on_stream=True
            )

    def attention(self, place: str, module: Attention, norm: nn.Module) -> None:
        read = self.entered(place, norm)
        source = read
        over = place == "cross"
        if over:
            about = "The encoder's output, which is the same for all blocks of the decoder."
            source = self.add("cross.memory", "memory", "encoder.output", (), about, of_memory=True)
        turned = ", turned by its position" if module.rotary is not None else ""
        heads, key_heads = tuple(module.kept.heads), tuple(module.kept.key_heads)
        about = f"What each token asks for, head by head{turned}."
        query = self.own(f"{place}.query", "query", (read,), about, heads=heads)
        also = {"of_memory": over, "heads": key_heads}
        about = f"What each token of the source offers to be found by{turned}."
        about = about if over else about.replace(" of the source", "")
        key = self.own(f"{place}.key", "key", (source,), about, **also)
        about = "What each token has to say to those that look at it."
        value = self.own(f"{place}.value", "value", (source,), about, **also)
        made = [query, key]
        if module.position_bias is not None or (not over and self.stack.position_bias is not None):
            about = "What is added to each score for how far apart two tokens are."
            made.append(self.own(f"{place}.bias", "bias", (), about))
        about = (
            f"Query times key, times {module.scale:.4g}"
            f"{', with the bias added' if len(made) > 2 else ''}: how well the two agree."
        )
        scores = self.own(f"{place}.scores", "scores", made, about, heads=heads)
        about = f"Softmax of each row of scores. A query sees {module.mask.describe()}."
        weights = self.own(f"{place}.weights", "weights", (scores,), about, heads=heads)
        about = "For each token the values it looks at, mixed by its weights, head by head."
        mixed = self.own(f"{place}.context", "context", (weights, value), about, heads=heads)
        about = "All heads side by side through one matrix: what attention says to the stream."
        self.own(f"{place}.output", "output", (mixed,), about)
        self.left(place, norm)

    def feedforward(self) -> None:
        place, module = "feedforward", self.block.feedforward
        read = self.entered(place, self.block.feedforward_norm)
        if isinstance(module, FeedForward):
            wide = module.up.out_features
            about = f"Each token by itself, spread out to {wide:,} channels: {self.activation}."
            read = self.own(f"{place}.inner", "inner", (read,), about)
            about = "Brought back to the width of the stream: what the feed-forward says to it."
        else:
            about = f"The weight of each expert; {module.per_token} work on a token."
            read = self.own(f"{place}.routing", "routing", (read,), about)
            about = "What the experts of each token make of it, mixed by their weights."
        self.own(f"{place}.output", "output", (read,), about)
        self.left(place, self.block.feedforward_norm)


def _norm_name(norm: nn.Module) -> str:
    return "Root-mean-square norm" if isinstance(norm, RMSNorm) else "Layer norm"


_AXES: dict[Role, tuple[str, ...]] = {
    "inner": ("batch", "tokens", "inner channels"),
    "routing": ("batch", "tokens", "experts"),
    **dict.fromkeys(("query", "context"), ("batch", "heads", "tokens", "channels of a head")),
    **dict.fromkeys(("key", "value"), ("batch", "key heads", "tokens", "channels of a head")),
    **dict.fromkeys(("scores", "weights", "bias"), ("batch", "heads", "queries", "keys")),
}


def _measured(step: _Step, value: np.ndarray, tokens: tuple[str, ...]) -> FlowPart:
    seen = value[0] if step.heads is None else value[0][list(step.heads)]
    sizes: np.ndarray | None = None
    figures: dict[str, float] = {}
    if step.role in ("scores", "bias"):
        shown = seen[np.isfinite(seen)]
        figures = {"lowest": float(shown.min()), "highest": float(shown.max())}
    elif step.role in ("weights", "routing"):
        figures = {"mean of the largest": float(seen.max(-1).mean())}
    else:
        lengths = np.linalg.norm(seen.astype(np.float64), axis=-1)
        sizes = (lengths if seen.ndim == 2 else lengths.mean(0)).astype(np.float32)
        figures = {"mean length": float(lengths.mean())}
    return FlowPart(
        step.key,
        step.role,
        step.place,
        step.on_stream,
        step.address,
        step.reads,
        value.shape,
        _AXES.get(step.role, ("batch", "tokens", "channels")),
        tokens,
        sizes,
        figures,
        step.about,
    )
