"""Data flow through one block: each tensor with its inputs, shape and mean vector length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from torch import nn

from heedful.inspect.attention_maps import choose_layer
from heedful.inspect.readings import ModelInput, tensors
from heedful.inspect.subject import InspectedSubLayer, Result, Subject, capture, stack_of, sublayers
from heedful.models.stack import Stack
from heedful.models.stack_spec import BlockSpec
from heedful.nn.mixer_spec import LinearAttentionSpec
from heedful.nn.spec import AttentionSpec, FeedForwardSpec, PartSpec

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


@dataclass(frozen=True, eq=False)
class FlowPart(Result):
    """A tensor on the way through a block.

    Args:
        key: name of the tensor in the block, e.g. `self.query`.
        role: kind of the tensor.
        place: sub-layer of the tensor, `self`, `cross` or `feedforward`; empty for the stream
            before and after the block.
        on_stream: flag of a tensor of the residual stream itself, not inside a sub-layer.
        address: address of the tensor in a capture, e.g. `encoder.2.self.query`.
        reads: keys of the tensors that this one is computed from.
        shape: shape of the tensor, with a batch dimension of 1 in front.
        axes: names of the dimensions.
        tokens: tokens that the vectors or rows belong to.
        sizes: [tokens] float32 Euclidean lengths of the tokens' vectors, averaged over heads; None
            for tensors without a vector per token.
        figures: summary statistics by name.
        about: sentence that explains the tensor.
        vectors: [tokens, D] float32 vectors; of a tensor with heads those of the first one, and
            [queries, keys] of its scores, -inf where hidden, and weights; None for biases.
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
    vectors: np.ndarray | None = None

    left_out = ("vectors",)


@dataclass(frozen=True, eq=False)
class BlockFlow(Result):
    """The tensors of a pass through one block, in topological order.

    Args:
        stack: `encoder` or `decoder`.
        layer: index of the block.
        norm_first: flag of pre-norm, where norms apply to the inputs of sub-layers; in post-norm
            they apply to the residual sums, which are the stream itself.
        parts: tensors of the block, each after its inputs.
    """

    stack: str
    layer: int
    norm_first: bool
    parts: tuple[FlowPart, ...]


def block_flow(
    subject: Subject, reading: ModelInput, stack: str | None = None, layer: int = -1
) -> BlockFlow:
    """Follow an input through a block.

    Args:
        subject: the model.
        reading: input from `read` or `see`.
        stack: `encoder` or `decoder`; None for the decoder where the model has one.
        layer: index of the block; −1 is the last.

    Raises:
        ModelError: when the model has no such stack.
        ConfigError: when the stack has no such layer.
    """
    name = stack or reading.last_stack
    module = stack_of(subject.model, name)
    layer = choose_layer(layer, len(module.blocks))
    plan = _Plan(module, layer, subject.model.spec.stacks()[name].blocks[layer])
    # One pass for all tensors; the plan alone knows which addresses this kind of block offers.
    values = capture(
        subject.model, tensors(subject, [reading]), [step.address for step in plan.steps]
    )
    tokens = reading.tokens(name).pieces
    memory = () if reading.encoder is None else reading.encoder.pieces
    parts = tuple(
        _flow_part(step, values[step.address], memory if step.of_memory else tokens)
        for step in plan.steps
    )
    return BlockFlow(name, layer, plan.norm_first, parts)


@dataclass(frozen=True)
class _Step:
    """A tensor of the plan, with the fields of `FlowPart` that are known before the pass.

    Args:
        of_memory: flag of a tensor whose rows are tokens of the encoder.
        heads: indices of the heads that were not pruned; None for tensors without heads.
    """

    key: str
    role: Role
    address: str
    reads: tuple[str, ...]
    about: str
    on_stream: bool = False
    of_memory: bool = False
    heads: tuple[int, ...] | None = None


class _Plan:
    """The tensors of a block in topological order, derived from its modules."""

    def __init__(self, stack: Stack, layer: int, spec: BlockSpec) -> None:
        block = stack.blocks[layer]
        self.stack = stack
        self.place = f"{stack.name}.{layer}"
        self.norm_first = all(s.norm_placement in ("before", "both") for s in spec.sublayers)
        self.steps: list[_Step] = []
        # The input of a block has no address of its own: it is the output of the block below.
        before, origin = "embedding", "the embedded tokens"
        if layer > 0:
            before, origin = f"{layer - 1}.output", f"the output of block {layer - 1}"
        about = f"The stream before the block: {origin}."
        self.stream = self.on_stream("input", "stream", f"{stack.name}.{before}", (), about)
        # Modules show which norms and residual connections exist; the specification names the kinds
        # of parts.
        for (name, sublayer), each in zip(sublayers(block).items(), spec.sublayers, strict=True):
            source = self.enter(name, sublayer, "input" if each.parallel else self.stream)
            if each.part.kind == "attention" or each.part.kind == "linear_attention":
                source, about = self.attention(name, sublayer, each.part, source)
            # A mixer with heads but no keys of its own, e.g. an additive score function (Bahdanau
            # 2015).
            elif sublayer.has_heads:
                source, about = self.score_attention(name, each.part, source)
            elif each.part.kind == "feedforward":
                source, about = self.feedforward(name, sublayer.module, each.part, source)
            else:
                about = f"The output of {sublayer.label}. {each.part.headline()}"
            # Gemma 2 has sandwich norms: a second norm on the output, before the residual sum.
            if sublayer.output_norm is not None:
                about += f" {_norm_name(sublayer.output_norm)} of it is added to the stream."
            self.add(f"{name}.output", "output", (source,), about)
            self.leave(name, sublayer)
        # A pre-norm stack needs a last norm, since its blocks never norm the stream.
        last = layer == len(stack.blocks) - 1
        about = f"The stream after the {'last ' if last else ''}block."
        self.on_stream("output", "stream", f"{self.place}.output", (self.stream,), about)
        if last and stack.final_norm is not None:
            about = f"{_norm_name(stack.final_norm)} of the stream, after the last block."
            self.on_stream("final.norm", "norm", f"{stack.name}.output", ("output",), about)

    def add(
        self,
        key: str,
        role: Role,
        reads: Sequence[str],
        about: str,
        address: str = "",
        **more: Any,
    ) -> str:
        """Add a tensor and return its key, which is its address in the block if none is given."""
        # Keys follow the addresses, except for tensors that are computed outside of the block.
        address = address or f"{self.place}.{key}"
        self.steps.append(_Step(key, role, address, tuple(reads), about, **more))
        return key

    def on_stream(
        self, key: str, role: Role, address: str, reads: Sequence[str], about: str
    ) -> str:
        """Add a tensor that is the stream itself."""
        return self.add(key, role, reads, about, address, on_stream=True)

    def enter(self, name: str, sublayer: InspectedSubLayer, stream: str) -> str:
        """Return the key of a sub-layer's input: a stream, or the normed stream in pre-norm."""
        if sublayer.norm is None or sublayer.norms_sum:
            return stream
        about = (
            f"{_norm_name(sublayer.norm)} of the stream, for {sublayer.label} alone: "
            "the stream itself stays as it is."
        )
        address = f"{self.place}.{name}.input"
        return self.add(f"{name}.norm", "norm", (stream,), about, address)

    def leave(self, name: str, sublayer: InspectedSubLayer) -> None:
        """Add the residual sum and, in post-norm, the norm that follows it."""
        address = f"{self.place}.{name}"
        reads: tuple[str, ...] = (f"{name}.output",)
        about = f"There is no residual connection: {sublayer.label} replaces the stream."
        if sublayer.residual:
            reads = (self.stream, *reads)
            about = f"The residual connection: {sublayer.label} is added to the stream."
        self.stream = self.on_stream(f"{name}.sum", "sum", f"{address}.residual", reads, about)
        if sublayer.norm is not None and sublayer.norms_sum:
            about = f"{_norm_name(sublayer.norm)} of the sum: from here on, this is the stream."
            self.stream = self.on_stream(
                f"{name}.norm", "norm", f"{address}.stream", (self.stream,), about
            )

    def attention(
        self,
        name: str,
        sublayer: InspectedSubLayer,
        spec: AttentionSpec | LinearAttentionSpec,
        source: str,
    ) -> tuple[str, str]:
        """Add the tensors of an attention whose queries come from `source`.

        Returns:
            The input of its output projection, and an explanation of the output.
        """
        module: Any = sublayer.module
        cross = sublayer.is_cross
        # Cross-attention projects keys and values from the encoder's output, queries from the
        # stream.
        memory = self.memory(name) if cross else source
        heads, softmax = sublayer.heads, sublayer.has_softmax
        # With grouped queries there are fewer key/value heads, and pruning may leave some of them.
        key_heads = tuple(module.kept.key_heads) if softmax else heads
        # Features take the place of the exponential: weights are phi(q) . phi(k) over their row sum
        # (Katharopoulos 2020).
        if spec.kind == "linear_attention":
            rotated = f", {_FEATURES[spec.features.kind]}"
        else:
            rotated = ", rotated by its position" if module.rotary is not None else ""
        about = f"The query of each token, head by head{rotated}: what it looks for."
        query = self.add(f"{name}.query", "query", (source,), about, heads=heads)
        of_source = " of the source" if cross else ""
        about = f"The key of each token{of_source}{rotated}: what queries are compared with."
        key = self.add(f"{name}.key", "key", (memory,), about, of_memory=cross, heads=key_heads)
        about = "The value of each token: what the tokens that attend to it receive."
        value = self.add(
            f"{name}.value", "value", (memory,), about, of_memory=cross, heads=key_heads
        )
        reads, seen = [query, key], f"A query sees {module.mask.describe()}."
        if softmax:
            reads, about = [self.scores(name, sublayer, reads)], "Softmax of each row of scores."
        else:
            about = "Query times key, by the sum of its row; never computed outside this picture."
        weights = self.add(f"{name}.weights", "weights", reads, f"{about} {seen}", heads=heads)
        about = "The mean of the values for each token, by its weights, head by head."
        context = self.add(f"{name}.context", "context", (weights, value), about, heads=heads)
        return context, "All heads side by side through one matrix: the output of attention."

    def memory(self, name: str) -> str:
        """Add the encoder's output."""
        about = "The encoder's output, which is the same for all blocks of the decoder."
        return self.add(f"{name}.memory", "memory", (), about, "encoder.output", of_memory=True)

    def score_attention(self, name: str, spec: PartSpec, source: str) -> tuple[str, str]:
        """Add the tensors of cross-attention by a score function, without projected keys.

        Returns:
            The key of the tensor that the output is projected from, and an explanation of the
            output.
        """
        memory = self.memory(name)
        about = "Softmax of a score of each state with each token of the source."
        weights = self.add(f"{name}.weights", "weights", (source, memory), about)
        about = "The mean of the encoder's output for each token, by its weights."
        context = self.add(f"{name}.context", "context", (weights, memory), about)
        if spec.kind == "recurrent_decoder":
            return context, f"The output of the recurrent layers. {spec.headline()}"
        return context, f"The mean through one matrix. {spec.headline()}"

    def scores(self, name: str, sublayer: InspectedSubLayer, reads: list[str]) -> str:
        """Add the scores of an attention with softmax, and their bias."""
        module: Any = sublayer.module
        # T5 shares the relative bias of its first layer with all others, but never with
        # cross-attention.
        shared = None if sublayer.is_cross else self.stack.position_bias
        if module.position_bias is not None or shared is not None:
            about = "The number added to each score for the distance of the two tokens."
            reads = [*reads, self.add(f"{name}.bias", "bias", (), about)]
        about = (
            f"Query times key, times {module.scale:.4g}"
            f"{', with the bias added' if len(reads) > 2 else ''}: how well the two agree."
        )
        return self.add(f"{name}.scores", "scores", reads, about, heads=sublayer.heads)

    def feedforward(
        self, name: str, module: Any, spec: FeedForwardSpec, source: str
    ) -> tuple[str, str]:
        """Add the inner tensors of a feed-forward network or of a mixture of experts.

        Returns:
            The input of the last map, and an explanation of the output.
        """
        # A mixture of experts has no single inner tensor: each token takes another pair of
        # matrices.
        if spec.experts is None:
            about = f"Each token by itself, on {spec.width:,} channels: {spec.activation}."
            inner = self.add(f"{name}.inner", "inner", (source,), about)
            return inner, "Back to the width of the stream: the output of the feed-forward network."
        about = f"The weight of each expert; each token uses {module.per_token} of them."
        routing = self.add(f"{name}.routing", "routing", (source,), about)
        return routing, "The sum of the outputs of each token's experts, by their weights."


_FEATURES = {
    "elu": "made positive by elu(x) + 1",
    "cosine": "without what is below 0, times a cosine and a sine of its position",
    "random": "as positive random features",
}
"""Descriptions of the feature maps of linear attention by kind."""


def _norm_name(norm: nn.Module) -> str:
    return "Layer norm" if isinstance(norm, nn.LayerNorm) else "Root-mean-square norm"


_AXES: dict[Role, tuple[str, ...]] = {
    "inner": ("batch", "tokens", "inner channels"),
    "routing": ("batch", "tokens", "experts"),
    **dict.fromkeys(("query", "context"), ("batch", "heads", "tokens", "channels of a head")),
    **dict.fromkeys(("key", "value"), ("batch", "key heads", "tokens", "channels of a head")),
    **dict.fromkeys(("scores", "weights", "bias"), ("batch", "heads", "queries", "keys")),
}


def _flow_part(step: _Step, value: np.ndarray, tokens: tuple[str, ...]) -> FlowPart:
    """Complete a step by the shape and the statistics of its tensor."""
    # Pruned heads are zeros in captured tensors, and would count as vectors of length 0.
    present = value[0] if step.heads is None else value[0][list(step.heads)]
    sizes: np.ndarray | None = None
    figures: dict[str, float] = {}
    vectors = None if step.role == "bias" else present if present.ndim == 2 else present[0]
    if step.role in ("scores", "bias"):
        # Scores of hidden keys are −∞.
        finite = present[np.isfinite(present)]
        figures = {"lowest": float(finite.min()), "highest": float(finite.max())}
    elif step.role in ("weights", "routing"):
        figures = {"mean of the largest": float(present.max(-1).mean())}
    else:
        # [L, D] or [H, L, E]: lengths [L], or the mean over heads of [H, L].
        lengths = np.linalg.norm(present.astype(np.float64), axis=-1)
        sizes = (lengths if present.ndim == 2 else lengths.mean(0)).astype(np.float32)
        figures = {"mean length": float(lengths.mean())}
    return FlowPart(
        step.key,
        step.role,
        step.key.partition(".")[0] if "." in step.key else "",
        step.on_stream,
        step.address,
        step.reads,
        value.shape,
        _AXES.get(step.role, ("batch", "tokens", "channels")),
        tokens,
        sizes,
        figures,
        step.about,
        vectors,
    )
