"""The most memory that a process holds while it trains or decodes, foreseen from a spec.

To what `heedful.models.cost_memory` counts this adds what only a process has: PyTorch itself, what
its kernels keep for each shape, passing results, and the holes of the heap. Factors were measured
on a processor (`benchmarks/memory.py`); on a GPU the process is not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from heedful.kernels.library import has_gemm
from heedful.models.cost_memory import (
    BFLOAT16,
    FLOAT32,
    TrainingMemory,
    predicted_vocabulary,
    stacks_of,
    training_memory,
)
from heedful.models.cost_parameters import is_gated, key_value_width
from heedful.models.family import CausalLMSpec, ModelSpec
from heedful.models.spec import StackSpec

PROCESS = 330_000_000
"""Python with PyTorch and the tokenizers loaded."""

PRIMITIVES = {False: 60_000_000, True: 130_000_000}
"""Kernels that are kept ready for shapes of ever new batches and their scratch memory, with the
caches as the command line bounds them (`heedful.cli.main`); whether products are oneDNN's."""

FEW_PRIMITIVES = 30_000_000
"""The same where shapes stay: in training on windows of one length, and in decoding."""

SLACK = 0.1
"""Holes of the heap, whose freed memory is kept for what comes next."""

LARGEST_TRAINING = 25_000
"""Positions of the paper's batches (Vaswani 2017, section 5.1); `auto` picks no larger ones."""

LARGEST_DECODING = 16_384
"""Larger batches decode no faster on a processor; `auto` picks no larger ones."""

_KEPT = {FLOAT32: 64, BFLOAT16: 256}
"""Longest sequences whose attention weights a processor's kernel keeps (`heedful.nn.attend`)."""


@dataclass(frozen=True, kw_only=True)
class Peak:
    """Bytes at the worst moment.

    Args:
        process: whatever is computed.
        model: weights and, in training, what there is one of for each.
        batch: what grows with the batch.
        slack: holes of the heap.
    """

    process: int
    model: int
    batch: int
    slack: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.process + self.needed

    @property
    def needed(self) -> int:
        """What a process that has loaded PyTorch still takes."""
        return self.model + self.batch + self.slack


def training_peak(
    spec: ModelSpec,
    tokens: int,
    *,
    length: int,
    parameters: int,
    number_bytes: int = FLOAT32,
    moving_average: bool = False,
    accumulated: bool = False,
    device: str = "cpu",
) -> Peak:
    """The most memory that training with Adam takes.

    Args:
        spec: the model.
        tokens: positions of a batch on each side, padding among them.
        length: of the longest text of a usual batch, in tokens.
        parameters: learned numbers.
        number_bytes: of products: `FLOAT32`, or `BFLOAT16` for mixed precision.
        moving_average: whether an average of the weights is kept.
        accumulated: whether updates have several batches, so that gradients wait.
        device: `cpu` or another.
    """
    kept = length if device == "cpu" and length <= _KEPT[number_bytes] else 0
    memory = training_memory(
        spec,
        tokens,
        tokens,
        activation_bytes=number_bytes,
        moving_average=moving_average,
        kept_weights_length=kept,
        parameters=parameters,
    )
    passing = tokens * max(_passing(stack, spec.width) for stack in stacks_of(spec)) * number_bytes
    half = number_bytes < FLOAT32
    if half and device == "cpu" and has_gemm("bfloat16", spec.width):
        # Kernels that read the weights as they are: nothing is cast, and no plans are made.
        half, memory = False, replace(memory, casts=0)
    model, batch = _at_once(memory, passing, accumulated=accumulated)
    casts = parameters * number_bytes if half else 0
    # Gradients come as activations go, but hardly ever fit into the holes that those leave.
    misfits = casts + (0 if accumulated else memory.gradients)
    primitives = FEW_PRIMITIVES if isinstance(spec, CausalLMSpec) else PRIMITIVES[half]
    return _peak(model, batch, primitives, device, misfits)


def decoding_peak(
    spec: ModelSpec,
    tokens: int,
    *,
    length: int,
    parameters: int,
    beam: int = 1,
    number_bytes: int = FLOAT32,
    device: str = "cpu",
    at_once: int = 1,
) -> Peak:
    """The most memory that translating, continuing or labelling texts takes.

    Args:
        spec: the model.
        tokens: positions of a batch: texts × longest × hypotheses.
        length: of the texts, in tokens.
        parameters: learned numbers.
        beam: hypotheses of each text.
        number_bytes: of products: `FLOAT32` or `BFLOAT16`.
        device: `cpu` or another.
        at_once: batches that are worked on side by side.
    """
    read = tokens // beam
    batch = read * max(_passing(stack, spec.width) for stack in stacks_of(spec)) * FLOAT32
    decoder: StackSpec | None = getattr(spec, "decoder", None)
    if decoder is not None:
        own = 2 * decoder.num_layers * key_value_width(decoder.block.self_attention, spec.width)
        # A reordered or grown cache stands beside the one it is made from for a while.
        batch += 2 * tokens * own * number_bytes
        cross = decoder.block.cross_attention
        if cross is not None:
            keys = 2 * decoder.num_layers * key_value_width(cross, spec.width)
            batch += read * keys * number_bytes
        hypotheses = max(1, tokens // length)
        batch += _SCORES * hypotheses * predicted_vocabulary(spec) * FLOAT32
    casts = parameters * number_bytes if number_bytes < FLOAT32 else 0
    return _peak(parameters * FLOAT32 + casts, at_once * batch, FEW_PRIMITIVES, device)


def largest(fits: Callable[[int], bool], most: int | None = None) -> int:
    """The largest number that fits, where smaller ones fit too; 0 if not even 1 does.

    Args:
        fits: whether a number does.
        most: not to be passed.
    """
    if not fits(1):
        return 0
    low, high = 1, 2
    while (most is None or high <= most) and fits(high):
        low, high = high, 2 * high
    if most is not None:
        high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


_SCORES = 4
"""Tensors of all pieces' scores that a search step holds at a time."""


def _passing(stack: StackSpec, width: int) -> int:
    """Numbers a position has in the results that pass, at most: those of a feed-forward layer."""
    feedforward = stack.block.feedforward
    return (3 if is_gated(feedforward) else 2) * feedforward.width + 4 * width


def _at_once(memory: TrainingMemory, passing: int, *, accumulated: bool) -> tuple[int, int]:
    """What the model and the batch hold at the worst moment.

    Gradients come as activations go, so that only the more of both counts, unless gradients of
    other batches are there already.
    """
    model = memory.weights + memory.moments + memory.moving_average + memory.casts
    batch = memory.activations + memory.loss + passing
    if accumulated:
        return model + memory.gradients, batch
    return model, max(batch, memory.gradients + passing)


def _peak(model: int, batch: int, primitives: int, device: str, misfits: int = 0) -> Peak:
    process = PROCESS + primitives if device == "cpu" else 0
    slack = misfits + round(SLACK * (model + batch))
    return Peak(process=process, model=model, batch=batch, slack=slack)
