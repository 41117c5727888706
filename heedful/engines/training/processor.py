"""Training on a processor: kernels in C where they serve, and no work for padding.

The model is that of the definition. For the time of an update its modules have this engine's
classes, which compute the same with fewer calls: whole sub-layers at once where matrices are small,
matmuls that read float32 weights as they are stored, rows without padding, dropout with cheap
random numbers. The definition computes the parts that none of these classes serves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from heedful.engines.class_exchange import Exchange, has_no_hooks
from heedful.engines.training.chunked_loss import ProcessorLosses
from heedful.engines.training.fused_sublayer import Parameters, fused_sublayer
from heedful.engines.training.processor_parts import PART_KINDS
from heedful.engines.training.products import (
    PackingLinear,
    UnpackingLinear,
    activated_pair,
    is_plain,
    may_fuse_sublayer,
)
from heedful.engines.training.residual_norm import ResidualNorm, apply_norm, residual_norm
from heedful.engines.unpadding import (
    PackedMemory,
    RealRows,
    UnpaddedStack,
    real_rows,
    rows_in_use,
    rows_of,
)
from heedful.kernels.library import ACTIVATIONS, KernelActivation
from heedful.models.block import Block, BlockState, SubLayer
from heedful.models.stack import Stack
from heedful.nn.feedforward import FeedForward
from heedful.nn.mixer import Context, CrossMixer, Memory, MixerState


class ProcessorEngine:
    """Training of one model on a processor; see `TrainingEngine`."""

    losses = ProcessorLosses()

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        mixers = [
            each
            for each in model.modules()
            if hasattr(each, "projection") or hasattr(each, "function")
        ]
        outputs = {id(each.output) for each in mixers if hasattr(each, "output")}

        def own(module: nn.Module) -> type[nn.Module] | None:
            # Only an output map packs: it is known by its place, as it is an ordinary nn.Linear.
            if id(module) in outputs and hasattr(module, "in_features"):
                return PackingLinear
            # Under tensor parallelism a map has its own matmul, and only unpacks the result here.
            return UnpackingLinear if hasattr(module, "mesh") else None

        kinds = {
            **PART_KINDS,
            Stack: ProcessorStack,
            Block: ProcessorBlock,
            FeedForward: ProcessorFeedForward,
        }
        self._exchange = Exchange(model, kinds, own)

    @contextmanager
    def active(self) -> Iterator[None]:
        with self._exchange.made():
            yield

    def explain(self) -> str:
        with self.active():
            return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for name, stack in getattr(self._model, "stacks", dict)().items():
            biases = () if stack.position_bias is None else (stack.position_bias,)
            for number, block in enumerate(stack.blocks):
                for index, sublayer in enumerate(block.sublayers):
                    part, after = block._modules[sublayer.name], block._after(index)
                    refusal = fusion_refusal(part, after, biases)
                    how = (
                        "one call in C, where its matrices are large enough"
                        if refusal is None
                        else f"part by part; of the call in C: {refusal}"
                    )
                    yield f"{name}.{number}.{sublayer.name}: {how}"
        yield "all else: the definition, with products, norms and dropout of the engine"


class ProcessorStack(UnpaddedStack):
    """A stack that computes real tokens only in training."""

    def _real_rows(self, x: Tensor, context: Context) -> RealRows | None:
        # Captures are promised in the padded shape [B, L, …].
        if not self.training or context.capture is not None:
            return None
        return _training_rows(x, context.positions.query)

    def read(self, memory: Memory) -> tuple[BlockState, ...]:
        rows = _training_rows(memory.states, memory.positions) if self.training else None
        if rows is None:
            return super().read(memory)
        packed = PackedMemory.of(memory, rows)
        return tuple(
            tuple(
                None if part is None else _project_memory(part, packed) for part in block.readers()
            )
            for block in self._blocks
        )


def _project_memory(part: CrossMixer, memory: PackedMemory) -> MixerState:
    """Return the keys and values, or another state, that a part computes from a memory."""
    source: Memory = memory
    if not getattr(part, "reads_rows", False):
        # Unpacked for each part and not once: gradients of the memory are then summed in the order
        # of the definition, to the same bits.
        source = replace(memory.padded, states=memory.rows.unpack(memory.states))
    return part.read(source)


def _training_rows(x: Tensor, positions: Tensor) -> RealRows | None:
    """Return the real rows of x [B, L, D] if leaving out the padding pays."""
    return real_rows(positions, exact_count=may_fuse_sublayer(x))


class ProcessorBlock(Block):
    """A block in training: one call for a sub-layer, or its part and one call for the rest."""

    def forward(
        self, x: Tensor, context: Context, states: BlockState = ()
    ) -> tuple[Tensor, BlockState]:
        """See `Block.forward`; x is [1, R, D] without its padding."""
        if context.capture is not None or not self.training:
            return super().forward(x, context, states)
        first = self.sublayers[0]
        # x is the stream and y the input of the next part. Every sub-layer ends with the norm of
        # the next sub-layer, so only the first norm stands alone.
        start, y = x, self._input_of(first, x)
        next_states: list[MixerState | None] = []
        for index, sublayer in enumerate(self.sublayers):
            part: Any = self._modules[sublayer.name]
            state, after = states[index] if states else None, self._after(index)
            result = None
            # The width is checked first: a narrow model fuses nothing, whatever its parts are.
            if may_fuse_sublayer(y) and fusion_refusal(part, after, context.biases) is None:
                result = part.fuse(x, y, after, context, state)
            if result is None:  # no fused call serves this sub-layer
                with _inputs_of(part, y, context) as (inputs, inside, rows):
                    if state is None:
                        output = part(inputs, inside)
                    else:
                        output, state = part.step(inputs, state, inside)
                output = output if rows is None else rows.pack(output)
                result = residual_norm(x, output, after)
            x, y = result
            for following in self.sublayers[index + 1 : index + 2]:
                if following.parallel:
                    y = self._input_of(following, start)
            next_states.append(state)
        return x, next_states

    def _input_of(self, sublayer: SubLayer, stream: Tensor) -> Tensor:
        """Return the input of a part: the stream, normed where norms come first."""
        norm = self.modules_of(sublayer)[1]
        return apply_norm(stream, norm) if sublayer.norms_input else stream

    def _after(self, index: int) -> ResidualNorm:
        """Return the dropout, sum and norms between a part and the input of the next part."""
        here, following = self.sublayers[index], self.sublayers[index + 1 : index + 2]
        _, norm, output_norm, dropout = self.modules_of(here)
        # There is no next part after the last sub-layer: the next block norms the stream itself.
        reads_norm = any(each.norms_input and not each.parallel for each in following)
        return ResidualNorm(
            norm=norm if here.placement == "after" else None,
            input_norm=self.modules_of(following[0])[1] if reads_norm else None,
            dropout=dropout.p,
            output_norm=output_norm,
            residual=here.address not in self.cut,
            scale=here.residual_scale,
        )


class ProcessorFeedForward(FeedForward):
    """A feed-forward network whose maps and activation are one call."""

    rows = "tokens"

    @property
    def kernel_activation(self) -> KernelActivation | None:
        """The activation between the maps; None for a gate, or an activation without a kernel."""
        return next((each for each in ACTIVATIONS if each == self.kind), None)

    def forward(self, x: Tensor, context: Context | None = None) -> Tensor:
        drops = self.training and self.dropout.p > 0.0
        captures = context is not None and context.capture is not None
        # The pair has no inner dropout and no gate, and never writes the inner input to memory.
        if not captures and (activation := self.kernel_activation) and not drops:
            output = activated_pair(x, self.up, activation, self.down)
            if output is not None:
                return output
        return super().forward(x, context)

    def fusion_refusal(self, biases: Sequence[Any]) -> str | None:
        """Return the reason why no call in C can compute the sub-layer; None if one can."""
        if self.kind is None:
            return "it has no gate beside the activation"
        if self.kernel_activation is None:
            return f"it knows {', '.join(ACTIVATIONS)}"
        if self.dropout.p > 0.0:
            return "it drops nothing between the two maps"
        if not is_plain(self.up, self.down) or not has_no_hooks(self):
            return "a map is parametrised or watched"
        return None

    def fuse(
        self, x: Tensor, y: Tensor, after: ResidualNorm, context: Context, state: Any
    ) -> tuple[Tensor, Tensor] | None:
        """Compute the whole sub-layer in one call; see `fused_sublayer`."""
        up = Parameters(self.up.weight, self.up.bias)
        down = Parameters(self.down.weight, self.down.bias)
        assert self.kernel_activation is not None  # see `fusion_refusal`
        return fused_sublayer(x, y, up, self.kernel_activation, down, after)


def fusion_refusal(part: Any, after: ResidualNorm, biases: Sequence[Any] = ()) -> str | None:
    """Return the reason why no call in C can compute a sub-layer, whatever its input."""
    if not after.is_fusable:
        return "it adds a residual as it is, and norms the sum once"
    if not hasattr(part, "fuse"):
        return "it is made for attention of several heads and for feed-forward networks"
    refusal: str | None = part.fusion_refusal(biases)
    return refusal


@contextmanager
def _inputs_of(
    part: Any, y: Tensor, context: Context
) -> Iterator[tuple[Tensor, Context, RealRows | None]]:
    """A context for the call of a part, which gives its inputs with or without padding.

    Yields:
        The input with or without padding; its context; and the rows for packing the output, or
        None where the output has the shape of y already.
    """
    packed = rows_of(context)
    if packed is None:
        yield y, context, None
        return
    padded: Context = context.padded  # type: ignore[attr-defined]
    inside = replace(padded, biases=context.biases, embedding=context.embedding)
    takes = getattr(part, "rows", None)
    if takes is None:  # convolutions and recurrences need each sequence in a row of its own
        yield packed.unpack(y), inside, packed
        return
    # The first map of such a mixer unpacks its output, and the last one packs its input. They find
    # the rows in a context variable, so that the mixers of the definition need not know them.
    token = rows_in_use.set(packed) if takes == "maps" else None
    try:
        yield y, inside, None
    finally:
        if token is not None:
            rows_in_use.reset(token)
