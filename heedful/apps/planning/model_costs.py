"""Costs of a model for plans: parameters, operations, activations, messages.

Costs are counted once from the built modules (`heedful.models.cost`); each layout divides them in
its own way. A position is a token of a sequence, or a source and a target token of a pair.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from heedful.engines.cost_memory import (
    embedding_saved,
    passing_numbers,
    rotated_beside,
    sublayer_saved,
)
from heedful.errors import ModelError
from heedful.models.cost import (
    BACKWARD_PER_FORWARD,
    blocks_of,
    count_parameters,
    encoding_work,
    image_work,
    numel,
    segment_work,
    text_work,
    training_cost,
)
from heedful.nn.work import FLOAT32, Saved, Work

if TYPE_CHECKING:
    from heedful.models.block import Block
    from heedful.models.model_spec import ModelSpec
    from heedful.models.stack_spec import BlockSpec
    from heedful.nn.spec import PartSpec

MASKED_SHARE = 0.15
"""Share of the tokens that a masked language model predicts (Devlin 2019)."""


@dataclass(frozen=True)
class Activations:
    """Bytes per position that the forward pass keeps for the backward pass.

    Args:
        inside: bytes that tensor parallelism divides.
        outside: bytes of the residual stream, norms and dropout, which are not divided.
    """

    inside: float = 0.0
    outside: float = 0.0

    def __add__(self, other: Activations) -> Activations:
        return Activations(self.inside + other.inside, self.outside + other.outside)

    def __rmul__(self, times: int) -> Activations:
        return Activations(times * self.inside, times * self.outside)

    def divided(self, tensor: int) -> float:
        """Return the bytes on each device of a tensor-parallel group."""
        return self.inside / tensor + self.outside


_NONE = Activations()


@dataclass(frozen=True, kw_only=True)
class BlockCosts:
    """Costs of one block, or the sum over all blocks.

    Args:
        layers: number of blocks.
        parameters: number of parameters.
        divisible: parameters in matrices that tensor parallelism divides.
        kept: activations of a position without checkpointing.
        products: activations of a position if inputs and the results of matmuls and attention are
            kept.
        inputs: activations of a position if only the block's input is kept.
        exchanges: number of all-reduces of tensor parallelism in a forward pass.
        exchanged: bytes of a position in these all-reduces.
        keys_values: bytes of the keys and values of a position, which context parallelism sends.
    """

    layers: int = 1
    parameters: int = 0
    divisible: int = 0
    kept: Activations = _NONE
    products: Activations = _NONE
    inputs: Activations = _NONE
    exchanges: int = 0
    exchanged: float = 0.0
    keys_values: float = 0.0

    def plus(self, other: BlockCosts, times: int) -> BlockCosts:
        """Return the costs plus `times` other costs."""
        theirs = vars(other)
        return BlockCosts(**{name: own + times * theirs[name] for name, own in vars(self).items()})


@dataclass(frozen=True, kw_only=True)
class ModelCosts:
    """Costs of training a model on sequences of one length, at one precision.

    Args:
        width: width D of the model.
        vocabulary: vocabulary size V of the predictions; 0 for a model that predicts no tokens.
        predicted: share of the positions with a prediction.
        parameters: number of parameters, shared ones counted once.
        length: positions of a sequence.
        forward: operations of the forward pass of one sequence.
        number_bytes: bytes of an element in matmuls.
        blocks: sum over all blocks.
        largest: block with the most parameters.
        embedded: bytes of a position kept before the first block.
        passing: bytes per position of the largest temporary results.
        divisors: numbers that the number of tensor-parallel devices must divide, by name.
        undivided: kinds of parts that tensor parallelism cannot divide.
        refuses_context: reason why context parallelism is impossible; empty if it is possible.
    """

    width: int
    vocabulary: int
    predicted: float
    parameters: int
    length: int
    forward: Work
    number_bytes: int
    blocks: BlockCosts
    largest: BlockCosts
    embedded: float
    passing: float
    divisors: Mapping[str, int]
    undivided: tuple[str, ...]
    refuses_context: str

    @property
    def forward_per_position(self) -> float:
        """Operations of a position in the forward pass."""
        return self.forward.total / self.length

    @property
    def training_per_position(self) -> float:
        """Operations of a position in forward and backward pass, without recomputation."""
        return (1 + BACKWARD_PER_FORWARD) * self.forward_per_position

    def parameters_of(self, tensor: int) -> float:
        """Return the parameters on each device of a tensor-parallel group."""
        return self.parameters - self.blocks.divisible * (1 - 1 / tensor)


def model_costs(spec: Any, length: int, number_bytes: int) -> ModelCosts:
    """Count the costs of a model.

    Args:
        spec: specification of the model.
        length: tokens of a sequence or of each side of a pair; ignored for models of images.
        number_bytes: bytes of an element in matmuls, `FLOAT32` or `BFLOAT16`.

    Raises:
        ModelError: when the model is no stack of blocks.
    """
    if not spec.stacks():
        raise ModelError(
            f"A plan divides blocks, and a model of the kind {spec.kind!r} has none",
            remedy="Train it on one device",
        )
    if spec.reads == "images":
        length = spec.num_states
    total, blocks = BlockCosts(layers=0), []
    for name, stack in spec.stacks().items():
        for settings, (block, layers) in zip(stack.pattern, blocks_of(spec, name), strict=True):
            blocks.append(_block(settings, block, spec.width, number_bytes))
            total = total.plus(blocks[-1], layers)
    parts = [each.part for stack in spec.stacks().values() for each in stack.sublayers()]
    forward = forward_work(spec, length)
    # An encoder without a head is trained to predict masked tokens.
    masked = spec.kind == "encoder" and spec.predicts in (None, "masked_token")
    if masked:
        table = 2 * spec.width * spec.predicted_vocabulary
        forward += Work(output=round(MASKED_SHARE * table * length))
    return ModelCosts(
        width=spec.width,
        vocabulary=spec.predicted_vocabulary if spec.generates or masked else 0,
        predicted=MASKED_SHARE if masked else 1.0,
        parameters=count_parameters(spec),
        length=length,
        forward=forward,
        number_bytes=number_bytes,
        blocks=total,
        largest=max(blocks, key=lambda block: block.parameters),
        embedded=sum(embedding_saved(spec, name).bytes(number_bytes) for name in spec.stacks()),
        passing=passing_numbers(spec) * number_bytes,
        divisors=_divisors(parts),
        undivided=tuple(sorted({part.kind for part in parts if _divided(part) is None})),
        refuses_context=_refuses_context(spec, parts),
    )


def _block(spec: BlockSpec, block: Block, width: int, number_bytes: int) -> BlockCosts:
    mixed = number_bytes < FLOAT32
    # The input of a block is a sum of the residual stream, in float32 at every precision.
    residual = Activations(outside=width * FLOAT32)
    total = BlockCosts(parameters=numel(block), products=residual, inputs=residual)
    for sublayer, part in zip(spec.sublayers, block.parts(), strict=True):
        # A length of 0: GPU kernels do not keep attention weights.
        saved = part.saved(0, mixed=mixed, shared_bias=False)
        saved = saved.plus(rotated_beside(part, shared_bias=False))
        if sublayer.part.reads_memory:
            saved = saved.plus(part.read_saved(mixed))
        result = width * number_bytes
        kept = saved.bytes(number_bytes)
        around = Activations(outside=sublayer_saved(sublayer, width).bytes(number_bytes))
        costs = BlockCosts(
            layers=0,
            kept=around + Activations(outside=kept),
            products=Activations(outside=result + kept),
            keys_values=_keys_values(sublayer.part, width) * number_bytes,
        )
        if _divided(sublayer.part) is not None:
            inside = _products(sublayer.part, saved) * number_bytes
            costs = replace(
                costs,
                divisible=sum(each.numel() for each in part.parameters() if each.dim() == 2),
                kept=around + Activations(inside=kept),
                products=Activations(inside=inside, outside=result),
                exchanges=1,
                exchanged=result,
            )
        total = total.plus(costs, 1)
    return total


def _divided(part: PartSpec) -> dict[str, int] | None:
    """Return the numbers of a part that the number of tensor-parallel devices must divide.

    None if tensor parallelism does not divide the matrices of the part (Shoeybi 2019).
    """
    if part.kind == "feedforward" and part.experts is None:
        return {"feed-forward width": part.width}
    if part.kind == "attention" and part.kept_heads is None and part.global_tokens is None:
        return {"heads": part.num_heads, "key/value heads": part.num_kv_heads or part.num_heads}
    return None


def _products(part: PartSpec, saved: Saved) -> int:
    """Return the number of elements per token in the matmul results of a divisible part."""
    if part.kind == "feedforward":
        return part.width * (2 if part.gate else 1)
    return saved.numbers


def _keys_values(part: PartSpec, width: int) -> int:
    if part.kind != "attention" or part.over == "memory":
        return 0
    return 2 * (part.num_kv_heads or part.num_heads) * part.width_of_heads(width)


def _divisors(parts: Sequence[PartSpec]) -> dict[str, int]:
    """Return the greatest common divisors of heads, key/value heads and feed-forward widths."""
    numbers: dict[str, int] = {}
    for part in parts:
        for name, number in (_divided(part) or {}).items():
            numbers[name] = math.gcd(numbers.get(name, 0), number)
    return numbers


def _refuses_context(spec: ModelSpec, parts: Sequence[PartSpec]) -> str:
    if spec.reads != "texts":
        return f"texts are divided for models of one text, and this one reads {spec.reads}"
    if others := sorted({part.kind for part in parts} - {"attention", "feedforward"}):
        return f"a ring passes keys and values of attention, and this model has {others[0]}"
    return ""


def forward_work(spec: Any, length: int) -> Work:
    """Return the operations of the forward pass of one sequence, pair or image.

    Args:
        spec: specification of the model.
        length: tokens of a sequence or of each side of a pair; ignored for models of images.

    Returns:
        The operations, without the predictions of masked tokens.
    """
    if spec.reads == "images":
        return image_work(spec)
    if spec.kind == "translator":
        return training_cost(spec, length, length).forward
    if spec.kind == "causal_lm":
        return text_work(spec, length) if spec.memory is None else segment_work(spec, length)
    return encoding_work(spec, length)
