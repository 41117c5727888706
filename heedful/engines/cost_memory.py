"""Memory of training and decoding in bytes, from a model's spec, and the peak of a process.

Weights, gradients, moments and states are exact. Activations are an estimate: the tensors that the
built parts name as needed by the backward pass. The peak adds the overhead of a process: PyTorch
itself, the plans its kernels keep for each shape, temporary results, and the holes of the heap. The
constants were measured on a processor (`benchmarks/memory.py`); for a GPU the process is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from heedful.kernels.library import has_gemm, has_row_kernels
from heedful.models.cost import (
    blocks_of,
    built,
    count_parameters,
    human_bytes,
    parts_of,
    readers_of,
    state_bytes,
)
from heedful.nn.work import BFLOAT16, FLOAT32, Checkpointing, Saved, weight_outputs

if TYPE_CHECKING:
    from heedful.models.model_spec import ModelSpec
    from heedful.models.stack_spec import SubLayerSpec
    from heedful.nn.spec import NormSpec

_LOGIT_CHUNK = 1 << 22
"""Logits of a chunk of the fused loss: half of `ProcessorLosses.elements`, for two tensors."""

_LOGIT_CHUNK_OF_GPU = 1 << 28
"""The same on other devices: half of `MaskedLosses.elements`."""

PROCESS = 330_000_000
"""Bytes of Python with PyTorch and the tokenizers loaded."""

PRIMITIVES = {False: 60_000_000, True: 130_000_000}
"""Bytes of kernels kept for the shapes of ever new batches, and of their scratch memory, by whether
oneDNN multiplies. The command line bounds PyTorch's two caches of them (`heedful.cli.main`):
unbounded, two layers of `tiny` took 1.01 GB after 60 steps, bounded 0.46 (torch 2.13)."""

FEW_PRIMITIVES = 30_000_000
"""Bytes of kept kernels where shapes stay: training on windows of one length, and decoding."""

SLACK = 0.1
"""Holes of the heap as a share of the rest. Training returns them once they add up to a tenth."""

LARGEST_TRAINING = 25_000
"""Positions of the paper's batches (Vaswani 2017, section 5.1); `auto` picks no larger ones."""

LARGEST_DECODING = 16_384
"""Positions from which on a batch decodes no faster on a processor; `auto` picks no larger ones."""

_LONGEST_KEPT = {FLOAT32: 64, BFLOAT16: 256}
"""Longest sequences whose attention weights a processor's kernel keeps (`attend.py`)."""

_LONGEST_KEPT_COMPILED = 128
"""The same of compiled blocks on a GPU (`traced_parts.py`)."""

_SCORES = 4
"""Tensors [hypotheses, V] that a search step holds at a time."""


@dataclass(frozen=True, kw_only=True)
class TrainingMemory:
    """Bytes of a training step, by what they are for.

    Args:
        weights: parameters in float32.
        gradients: gradients in float32.
        moments: Adam's two running means per parameter.
        moving_average: exponential moving average of the weights, if one is kept.
        activations: tensors that the forward pass keeps for the backward pass; an estimate.
        loss: chunk of logits and gradients that the fused loss holds.
        logits: chunk of logits alone, which is freed before the backward pass of the blocks.
        casts: copies of the weights in the dtype of mixed precision.
        recomputed: activations that a block recomputes for its gradients.
    """

    weights: int
    gradients: int
    moments: int
    moving_average: int
    activations: int
    loss: int
    logits: int = 0
    casts: int = 0
    recomputed: int = 0

    @property
    def fixed(self) -> int:
        """Bytes that do not depend on the batch."""
        return self.weights + self.gradients + self.moments + self.moving_average

    @property
    def total(self) -> int:
        """The sum of all bytes."""
        return self.fixed + self.casts + self.of_batch

    @property
    def of_batch(self) -> int:
        """Peak bytes of a batch: during the loss, or while a block is recomputed."""
        # Blocks are recomputed after the logits were freed, so the two do not add up.
        return self.activations + self.loss + max(0, self.recomputed - self.logits)


def describe_fit(needed: int, available: int) -> str:
    """Compare needed and available bytes in a sentence for people."""
    verdict = "Fits" if needed <= available else "Does not fit"
    return f"{verdict}: {human_bytes(needed)} needed, {human_bytes(available)} available"


def training_memory(
    spec: ModelSpec,
    source_tokens: int,
    target_tokens: int,
    *,
    activation_bytes: int = FLOAT32,
    moving_average: bool = False,
    kept_weights_length: int = 0,
    parameters: int | None = None,
    checkpointing: Checkpointing = "none",
    length_in_c: int = 0,
    device: str = "cpu",
) -> TrainingMemory:
    """Return the bytes of one training step with Adam.

    Args:
        spec: spec of the model.
        source_tokens: source positions of a batch, padding included; for translators only.
        target_tokens: target positions of a batch, or those of a model with a single stack.
        activation_bytes: bytes per element: `FLOAT32`, or `BFLOAT16` for mixed precision.
        moving_average: flag that an average of the weights is kept beside them.
        kept_weights_length: longest sequence in tokens if the kernel keeps its attention weights
            (`reference`, `matmul`); 0 for kernels that recompute them (`sdpa`, `chunked`, `flex`).
        parameters: number of parameters; counted if unset.
        checkpointing: mode of activation checkpointing.
        length_in_c: longest sequence if kernels in C compute whole sub-layers, which selective
            checkpointing keeps; 0 if they do not.
        device: type of device, such as `cpu`.
    """
    if parameters is None:
        parameters = count_parameters(spec)
    weights = parameters * FLOAT32
    mixed = activation_bytes < FLOAT32
    activations = recomputed = 0
    for name, stack in spec.stacks().items():
        reads_source = name == "encoder" and spec.reads == "pairs"
        tokens = source_tokens if reads_source else target_tokens
        final = _norm_saved(stack.final_norm, spec.of_stack(name).width) if stack.final_norm else 0
        saved = embedding_saved(spec, name).plus(Saved(wide=final))
        activations += tokens * saved.bytes(activation_bytes)
        for block in _blocks_saved(spec, name, kept_weights_length, length_in_c, mixed=mixed):
            kept = block.kept(checkpointing, activation_bytes)
            activations += tokens * block.layers * kept
            forgotten = block.everything.bytes(activation_bytes) - kept
            recomputed = max(recomputed, tokens * forgotten)
        for part, layers in readers_of(spec, name):  # keys and values of the source
            read = part.read_saved(mixed).bytes(activation_bytes)
            activations += source_tokens * layers * read
    vocabulary = spec.predicted_vocabulary
    tables = spec.width * vocabulary
    logits = logit_bytes(vocabulary, target_tokens, activation_bytes, device)
    return TrainingMemory(
        weights=weights,
        gradients=weights,
        moments=2 * weights,
        moving_average=weights if moving_average else 0,
        activations=activations,
        loss=logits + loss_bytes(spec.width, vocabulary, target_tokens, activation_bytes),
        logits=logits,
        # The cast of the output projection is counted in `loss_bytes`.
        casts=max(0, parameters - tables) * activation_bytes if mixed else 0,
        recomputed=recomputed,
    )


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The peak memory of a process, in bytes.

    Args:
        process: overhead of a process with PyTorch, whatever it computes.
        model: weights and, in training, gradients, moments and averages.
        batch: tensors that grow with the batch.
        slack: holes of the heap.
    """

    process: int
    model: int
    batch: int
    slack: int

    @property
    def total(self) -> int:
        """The sum of all bytes."""
        return self.process + self.needed

    @property
    def needed(self) -> int:
        """Bytes on top of a process with PyTorch loaded."""
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
    checkpointing: Checkpointing = "none",
) -> Peak:
    """Return the most memory that training with Adam takes.

    Args:
        spec: spec of the model.
        tokens: positions of a batch on each side, padding included.
        length: length of the longest sequence of a usual batch, in tokens.
        parameters: number of parameters.
        number_bytes: bytes per element of matmuls: `FLOAT32`, or `BFLOAT16` for mixed precision.
        moving_average: flag that an average of the weights is kept.
        accumulated: flag that an update accumulates the gradients of several batches.
        device: type of device, such as `cpu`.
        checkpointing: mode of activation checkpointing.
    """
    kind = "float32" if number_bytes == FLOAT32 else "bfloat16"
    on_cpu = device == "cpu"
    longest = _LONGEST_KEPT[number_bytes] if on_cpu else _LONGEST_KEPT_COMPILED
    weights_length = length if length <= longest else 0
    memory = training_memory(
        spec,
        tokens,
        tokens,
        activation_bytes=number_bytes,
        moving_average=moving_average,
        kept_weights_length=weights_length,
        parameters=parameters,
        checkpointing=checkpointing,
        length_in_c=length if on_cpu and has_gemm(kind, spec.width, fused=True) else 0,
        device=device,
    )
    passing = tokens * passing_numbers(spec) * number_bytes
    half = number_bytes < FLOAT32
    if half and on_cpu and has_gemm("bfloat16", spec.width):
        # Kernels in C read float32 weights and round them while packing: no casts, no plans.
        half, memory = False, replace(memory, casts=0)
    model, batch = _at_once(memory, passing, accumulated=accumulated)
    casts = parameters * number_bytes if half else 0
    # Gradients are made while activations are freed, but hardly ever fit into their holes.
    misfits = casts + (0 if accumulated else memory.gradients)
    of_one_length = spec.generates and spec.reads == "texts"  # windows
    primitives = FEW_PRIMITIVES if of_one_length else PRIMITIVES[half]
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
    """Return the most memory that translating, continuing or labelling sequences takes.

    Args:
        spec: spec of the model.
        tokens: positions of a batch: sequences × longest length × hypotheses.
        length: length of the sequences in tokens.
        parameters: number of parameters.
        beam: number of hypotheses of each sequence.
        number_bytes: bytes per element of matmuls: `FLOAT32` or `BFLOAT16`.
        device: type of device, such as `cpu`.
        at_once: number of batches computed side by side.
    """
    read = tokens // beam  # positions of the encoder, or of the prompts
    batch = read * passing_numbers(spec) * FLOAT32
    if spec.generates:
        hypotheses = max(1, tokens // length)
        fixed, _ = state_bytes(spec, 0, number_bytes=number_bytes)
        own, cross = state_bytes(spec, tokens, memory_tokens=read, number_bytes=number_bytes)
        # A reordered or grown cache is a copy: for a while there are two.
        batch += 2 * (own + (hypotheses - 1) * fixed) + cross
        batch += _SCORES * hypotheses * spec.predicted_vocabulary * FLOAT32
    casts = parameters * number_bytes if number_bytes < FLOAT32 else 0
    return _peak(parameters * FLOAT32 + casts, at_once * batch, FEW_PRIMITIVES, device)


def logit_bytes(vocabulary: int, tokens: int, number_bytes: int, device: str = "cpu") -> int:
    """Return the bytes of the two chunks of logits [tokens, V] that the fused loss holds."""
    chunk = _LOGIT_CHUNK if device == "cpu" else _LOGIT_CHUNK_OF_GPU
    rows = min(tokens, max(1, chunk // vocabulary))
    return 2 * rows * vocabulary * number_bytes


def loss_bytes(width: int, vocabulary: int, tokens: int, number_bytes: int) -> int:
    """Return the bytes that the loss of a batch takes beside its logits.

    These are the final states and their gradients, and gradients and casts of the projection.
    """
    states = tokens * width * (FLOAT32 + number_bytes)
    table = width * vocabulary
    cast = table * number_bytes if number_bytes < FLOAT32 else 0
    # The gradient of the projection in float32, and a chunk's share of it in two dtypes.
    return states + table * (number_bytes + 2 * FLOAT32) + cast


def embedding_saved(spec: Any, name: str) -> Saved:
    """Return the elements per token that are kept before the first block of a stack."""
    module: Any = built(spec).input_modules()[name]
    spec = spec.of_stack(name)
    mask = spec.width if module.dropout.p else 0  # int8, one byte per element
    if spec.reads == "images":
        norm = spec.input_norm if spec.kind == "vision" else None
        return Saved(0, mask, spec.width + (_norm_saved(norm, spec.width) if norm else 0))
    norm, width = spec.embedding.norm, spec.embedding.width or spec.width
    read = spec.embedding.width or 0  # the input of the map to the model's width
    return Saved(read, mask, _norm_saved(norm, width) if norm else 0)


@dataclass(frozen=True)
class _BlockSaved:
    """Elements per token that blocks of one kind keep for their gradients.

    Args:
        layers: number of blocks of this kind.
        input: input of the block; a sum of the residual stream.
        products: results of matmuls with weights, or all that whole sub-layers in C keep.
        everything: elements kept without checkpointing.
    """

    layers: int
    input: Saved
    products: Saved
    everything: Saved

    def kept(self, checkpointing: Checkpointing, number_bytes: int) -> int:
        """Return the bytes per token that one of these blocks keeps."""
        everything = self.everything.bytes(number_bytes)
        if checkpointing == "none":
            return everything
        if checkpointing == "full":
            return self.input.bytes(number_bytes)
        return min(everything, self.input.plus(self.products).bytes(number_bytes))


def _blocks_saved(
    spec: ModelSpec, name: str, length: int, length_in_c: int, *, mixed: bool
) -> Iterator[_BlockSaved]:
    stack, width = spec.stacks()[name], spec.of_stack(name).width
    shared = stack.shared_position_bias is not None
    for settings, (block, layers) in zip(stack.pattern, blocks_of(spec, name), strict=True):
        everything = products = Saved()
        for sublayer, part in zip(settings.sublayers, block.parts(), strict=True):
            inside = _saved_here(part, length, mixed=mixed, shared=shared)
            inside = inside.plus(_sublayer_saved_here(sublayer, width))
            everything = everything.plus(inside)
            in_c = _is_whole_in_c(part, length_in_c)
            products = products.plus(inside if in_c else Saved(weight_outputs(part)))
        # The residual stream is float32 at every precision.
        block_input = Saved(wide=width)
        yield _BlockSaved(layers, block_input, products, everything)


def _is_whole_in_c(part: Any, length: int) -> bool:
    """Return whether one call in C computes a sub-layer; a length of 0 stands for no such calls."""
    from heedful.engines.training.native_attention import LONGEST  # loads torch

    if hasattr(part, "is_plain"):  # attention of several heads
        return not part.dropout and 0 < length <= LONGEST
    return hasattr(part, "down") and not part.dropout.p and length > 0


def _saved_here(part: Any, length: int, *, mixed: bool, shared: bool) -> Saved:
    """Return the elements per token that a part keeps if kernels of this processor compute it.

    Args:
        part: part of a sub-layer.
        length: longest sequence whose attention weights are kept; 0 where they are not.
        mixed: flag that activations have half precision.
        shared: flag that the blocks share a position bias.
    """
    # Kernels in C recompute attention weights for the gradient instead of keeping [H, L] a token.
    recomputes = hasattr(part, "is_plain") and has_row_kernels(part.head_width)
    recomputes = recomputes and part.is_plain(shared_bias=shared)
    kept: Saved = part.saved(0 if recomputes else length, mixed=mixed, shared_bias=shared)
    return kept.plus(rotated_beside(part, shared_bias=shared)) if recomputes else kept


def rotated_beside(part: Any, *, shared_bias: bool) -> Saved:
    """Return the elements per token of the rotated copies of queries and keys.

    Values are not copied: kernels that recompute attention weights read them in the projection.
    """
    plain = hasattr(part, "is_plain") and part.is_plain(shared_bias=shared_bias)
    if not plain or part.over_memory or part.rotary is None:
        return Saved()
    return Saved((part.heads_left + part.key_heads_left) * part.head_width)


def sublayer_saved(spec: SubLayerSpec, width: int) -> Saved:
    """Return the elements per token that PyTorch's operations keep around a part.

    These are the input of the part, the inputs of norms, and the dropout mask. Sums of the residual
    stream, and so the inputs of norms, are float32 at every precision.
    """
    return Saved(width, width if spec.dropout else 0, _norms(spec) * _norm_saved(spec.norm, width))


def _sublayer_saved_here(spec: SubLayerSpec, width: int) -> Saved:
    """Return `sublayer_saved` for this processor: kernels in C recompute the dropout mask."""
    return (
        Saved(width, 0, _norms(spec) * width)
        if has_row_kernels(width)
        else sublayer_saved(spec, width)
    )


def _norms(spec: SubLayerSpec) -> int:
    return {"none": 0, "both": 2}.get(spec.norm_placement, 1)


def _norm_saved(spec: NormSpec, width: int) -> int:
    """Return a norm's kept elements: its input; also the unscaled result of an RMS norm."""
    # An RMS norm is several PyTorch operations, and the factor's gradient needs their result.
    return 2 * width if spec.kind == "rms" else width


def passing_numbers(spec: ModelSpec) -> int:
    """Return the largest number of temporary elements per position, in a feed-forward layer."""
    parts = [part for name in spec.stacks() for part, _ in parts_of(spec, name)]
    return max(getattr(part, "peak_numbers", 0) for part in parts) + 4 * spec.width


def _at_once(memory: TrainingMemory, passing: int, *, accumulated: bool) -> tuple[int, int]:
    """Return the bytes of the model and of the batch at the peak.

    Gradients are made while activations are freed, so only the larger of both counts, unless
    gradients of earlier batches exist already.
    """
    model = memory.weights + memory.moments + memory.moving_average + memory.casts
    batch = memory.of_batch + passing
    if accumulated:
        return model + memory.gradients, batch
    return model, max(batch, memory.gradients + memory.recomputed + passing)


def _peak(model: int, batch: int, primitives: int, device: str, misfits: int = 0) -> Peak:
    process = PROCESS + primitives if device == "cpu" else 0
    slack = misfits + round(SLACK * (model + batch))
    return Peak(process=process, model=model, batch=batch, slack=slack)
