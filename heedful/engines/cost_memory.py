"""Bytes that a model needs to learn and to decode, from its spec, and the peak of a process.

Weights, gradients, moments and states are exact. Activations are an estimate: the tensors that the
backward pass needs, as the built parts say. The peak adds what only a process has: PyTorch itself,
what its kernels keep for each shape, passing results, and the holes of the heap. Its factors were
measured on a processor (`benchmarks/memory.py`); on a GPU the process is not counted.
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
    state_bytes,
)
from heedful.nn.work import BFLOAT16, FLOAT32, Checkpointing, Saved, weight_outputs

if TYPE_CHECKING:
    from heedful.models.model_spec import ModelSpec
    from heedful.models.stack_spec import SubLayerSpec
    from heedful.nn.spec import NormSpec

_LOGIT_CHUNK = 1 << 22
"""Logits that the fused loss holds at a time, twice (`heedful.nn.losses`)."""

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

_LONGEST_KEPT = {FLOAT32: 64, BFLOAT16: 256}
"""Longest sequences whose attention weights a processor's kernel keeps (`attend.py`)."""

_SCORES = 4
"""Tensors of all pieces' scores that a search step holds at a time."""


@dataclass(frozen=True, kw_only=True)
class TrainingMemory:
    """Bytes of a training step, by what they are for.

    Args:
        weights: the parameters.
        gradients: one number per parameter.
        moments: Adam's two running means per parameter.
        moving_average: an exponential moving average of the weights, if one is kept.
        activations: what the forward pass leaves for the backward pass; an estimate.
        loss: the chunk of logits and the gradients that the fused loss holds.
        logits: the chunk alone, which is gone before the backward pass of the blocks.
        casts: the weights as products of fewer bits read them.
        recomputed: what a block computes again for its gradients, where blocks do.
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
        """All of it, in bytes."""
        return self.fixed + self.casts + self.of_batch

    @property
    def of_batch(self) -> int:
        """Bytes of the worst moment of a batch: that of the loss, or of a block computed again."""
        return self.activations + self.loss + max(0, self.recomputed - self.logits)


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A comparison of the bytes needed with those there are.

    Args:
        needed: bytes.
        available: bytes.
    """

    needed: int
    available: int

    @property
    def fits(self) -> bool:
        """True if there are at least as many as needed."""
        return self.needed <= self.available

    def describe(self) -> str:
        """A sentence for people."""
        verdict = "Fits" if self.fits else "Does not fit"
        return (
            f"{verdict}: {human_bytes(self.needed)} needed, {human_bytes(self.available)} available"
        )


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
) -> TrainingMemory:
    """Return the bytes of one training step with Adam.

    Args:
        spec: the model.
        source_tokens: source positions of a batch, padding among them; of a translator only.
        target_tokens: target positions of a batch, or those of a model with a single stack.
        activation_bytes: per number: `FLOAT32`, or `BFLOAT16` for mixed precision.
        moving_average: whether an average of the weights is kept beside them.
        kept_weights_length: longest sentence in tokens if the kernel keeps its attention weights
            (`reference`, `matmul`); 0 for kernels that recompute them (`sdpa`, `chunked`, `flex`).
        parameters: learned numbers; counted if unset.
        checkpointing: what blocks compute again for their gradients.
        length_in_c: longest sentence if kernels in C do whole sub-layers, which selective
            checkpointing leaves alone; 0 if they do not.
    """
    if parameters is None:
        parameters = count_parameters(spec)
    weights = parameters * FLOAT32
    mixed = activation_bytes < FLOAT32
    activations = recomputed = 0
    for name in spec.stacks():
        reads_source = name == "encoder" and spec.reads == "pairs"
        tokens = source_tokens if reads_source else target_tokens
        saved = _around_blocks(spec, name).plus(embedding_saved(spec, name))
        activations += tokens * saved.bytes(activation_bytes)
        for block in _blocks_saved(spec, name, kept_weights_length, length_in_c, mixed=mixed):
            kept = block.kept(checkpointing, activation_bytes)
            activations += tokens * block.layers * kept
            forgotten = block.whole.bytes(activation_bytes) - kept
            recomputed = max(recomputed, tokens * forgotten)
        for part, layers in parts_of(spec, name):
            if hasattr(part, "read"):  # every layer keeps what it made of the source
                read = part.read_saved(mixed).bytes(activation_bytes)
                activations += source_tokens * layers * read
    vocabulary = spec.predicted_vocabulary
    tables = spec.width * vocabulary
    logits = logit_bytes(vocabulary, target_tokens, activation_bytes)
    return TrainingMemory(
        weights=weights,
        gradients=weights,
        moments=2 * weights,
        moving_average=weights if moving_average else 0,
        activations=activations,
        loss=logits + loss_bytes(spec.width, vocabulary, target_tokens, activation_bytes),
        logits=logits,
        casts=max(0, parameters - tables) * activation_bytes if mixed else 0,
        recomputed=recomputed,
    )


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
        """The bytes that a process with PyTorch loaded still takes."""
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
        spec: the model.
        tokens: positions of a batch on each side, padding among them.
        length: of the longest text of a usual batch, in tokens.
        parameters: learned numbers.
        number_bytes: of products: `FLOAT32`, or `BFLOAT16` for mixed precision.
        moving_average: whether an average of the weights is kept.
        accumulated: whether updates have several batches, so that gradients wait.
        device: `cpu` or another.
        checkpointing: what blocks compute again for their gradients.
    """
    kind = "float32" if number_bytes == FLOAT32 else "bfloat16"
    weights_length = length if device == "cpu" and length <= _LONGEST_KEPT[number_bytes] else 0
    memory = training_memory(
        spec,
        tokens,
        tokens,
        activation_bytes=number_bytes,
        moving_average=moving_average,
        kept_weights_length=weights_length,
        parameters=parameters,
        checkpointing=checkpointing,
        length_in_c=length if device == "cpu" and has_gemm(kind, spec.width, fused=True) else 0,
    )
    passing = tokens * passing_numbers(spec) * number_bytes
    half = number_bytes < FLOAT32
    if half and device == "cpu" and has_gemm("bfloat16", spec.width):
        # Kernels that read the weights as they are: nothing is cast, and no plans are made.
        half, memory = False, replace(memory, casts=0)
    model, batch = _at_once(memory, passing, accumulated=accumulated)
    casts = parameters * number_bytes if half else 0
    # Gradients come as activations go, but hardly ever fit into the holes that those leave.
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
    """Return the most memory that translating, continuing or labelling texts takes.

    Args:
        spec: the model.
        tokens: positions of a batch: texts × longest × hypotheses.
        length: of the texts, in tokens.
        parameters: learned numbers.
        beam: hypotheses of each text.
        number_bytes: of products: `FLOAT32` or `BFLOAT16`.
        device: `cpu` or another.
        at_once: batches in work side by side.
    """
    read = tokens // beam
    batch = read * passing_numbers(spec) * FLOAT32
    if spec.generates:
        hypotheses = max(1, tokens // length)
        fixed, _ = state_bytes(spec, 0, number_bytes=number_bytes)
        own, cross = state_bytes(spec, tokens, memory_tokens=read, number_bytes=number_bytes)
        # A reordered or grown cache stands beside the one it is made from for a while.
        batch += 2 * (own + (hypotheses - 1) * fixed) + cross
        batch += _SCORES * hypotheses * spec.predicted_vocabulary * FLOAT32
    casts = parameters * number_bytes if number_bytes < FLOAT32 else 0
    return _peak(parameters * FLOAT32 + casts, at_once * batch, FEW_PRIMITIVES, device)


def logit_bytes(vocabulary: int, tokens: int, number_bytes: int) -> int:
    """Return the bytes of two chunks of logits.

    Args:
        vocabulary: V.
        tokens: positions of the batch that are predicted.
        number_bytes: of products.
    """
    rows = min(tokens, max(1, _LOGIT_CHUNK // vocabulary))
    return 2 * rows * vocabulary * number_bytes


def loss_bytes(width: int, vocabulary: int, tokens: int, number_bytes: int) -> int:
    """Return the bytes of the loss of a batch beside its logits.

    They are states and their gradients, and the projection's gradients and casts.

    Args:
        width: D.
        vocabulary: V.
        tokens: positions of the batch that are predicted.
        number_bytes: of products.
    """
    states = tokens * width * (FLOAT32 + number_bytes)
    table = width * vocabulary
    cast = table * number_bytes if number_bytes < FLOAT32 else 0
    return states + table * (number_bytes + 2 * FLOAT32) + cast


def embedding_saved(spec: ModelSpec, name: str) -> Saved:
    """Return the numbers of a token kept before the first block of a stack."""
    module: Any = built(spec).input_modules()[name]
    marks = spec.width if module.dropout.p else 0
    if spec.reads == "images":
        return Saved(0, marks, spec.width)
    norm = spec.embedding.norm
    return Saved(0, marks, _norm_saved(norm, spec.width) if norm else 0)


@dataclass(frozen=True, kw_only=True)
class _BlockSaved:
    """Numbers of a token that blocks of a kind leave for their gradients.

    Args:
        layers: how many blocks are of this kind.
        input: of the block; a sum of the residual stream.
        products: of matrices with weights, or what whole sub-layers in C keep.
        whole: all that is kept without checkpointing.
    """

    layers: int
    input: Saved
    products: Saved
    whole: Saved

    def kept(self, checkpointing: Checkpointing, number_bytes: int) -> int:
        """Return the bytes that one of these blocks keeps of a token."""
        whole = self.whole.bytes(number_bytes)
        if checkpointing == "none":
            return whole
        if checkpointing == "full":
            return self.input.bytes(number_bytes)
        return min(whole, self.input.plus(self.products).bytes(number_bytes))


def _blocks_saved(
    spec: ModelSpec, name: str, length: int, length_in_c: int, *, mixed: bool
) -> Iterator[_BlockSaved]:
    stack = spec.stacks()[name]
    shared = stack.shared_position_bias is not None
    for settings, (block, layers) in zip(stack.pattern, blocks_of(spec, name), strict=True):
        whole = products = Saved()
        for sublayer, part in zip(settings.sublayers, block.parts(), strict=True):
            inside = _saved_here(part, length, mixed=mixed, shared=shared)
            inside = inside.plus(_sublayer_saved_here(sublayer, spec.width))
            whole = whole.plus(inside)
            in_c = _is_whole_in_c(part, length_in_c)
            products = products.plus(inside if in_c else Saved(weight_outputs(part)))
        block_input = Saved(wide=spec.width)
        yield _BlockSaved(layers=layers, input=block_input, products=products, whole=whole)


def _is_whole_in_c(part: Any, length: int) -> bool:
    """Return whether one call in C does all of a sub-layer of sentences so long; 0 for none."""
    from heedful.engines.training.native_attention import LONGEST  # loads torch

    if hasattr(part, "is_plain"):  # attention of several heads
        return not part.dropout and 0 < length <= LONGEST
    return hasattr(part, "down") and not part.dropout.p and length > 0


def _saved_here(part: Any, length: int, *, mixed: bool, shared: bool) -> Saved:
    """Return the numbers of a token that a part keeps by the kernels of this processor.

    Args:
        part: of a sub-layer.
        length: longest text whose attention weights are kept; 0 where they are not.
        mixed: whether activations are of half precision.
        shared: whether the blocks share a position bias.
    """
    remade = hasattr(part, "is_plain") and has_row_kernels(part.head_width)
    remade = remade and part.is_plain(shared_bias=shared)  # attention weights, for gradients
    kept: Saved = part.saved(0 if remade else length, mixed=mixed, shared_bias=shared)
    return kept.plus(rotated_beside(part, shared_bias=shared)) if remade else kept


def rotated_beside(part: Any, *, shared_bias: bool) -> Saved:
    """Return the numbers of rotated queries and keys beside what a token's projection left.

    Kernels that make attention weights anew read values where the projection put them.

    Args:
        part: of a sub-layer.
        shared_bias: whether the blocks share a position bias.
    """
    plain = hasattr(part, "is_plain") and part.is_plain(shared_bias=shared_bias)
    if not plain or part.over_memory or part.rotary is None:
        return Saved()
    return Saved((part.heads_left + part.key_heads_left) * part.head_width)


def _around_blocks(spec: ModelSpec, name: str) -> Saved:
    """Return the numbers of a token that a stack keeps after its blocks."""
    final = spec.stacks()[name].final_norm
    return Saved(wide=_norm_saved(final, spec.width) if final else 0)


def sublayer_saved(spec: SubLayerSpec, width: int) -> Saved:
    """Return the numbers of a token kept around a part by PyTorch's operations.

    They are its input, the norms' inputs, and dropout's marks. Sums of the residual stream, and so
    the inputs of norms, are float32 at every precision.

    Args:
        spec: of the sub-layer.
        width: D.
    """
    norms = {"none": 0, "both": 2}.get(spec.norm_placement, 1)
    return Saved(width, width if spec.dropout else 0, norms * _norm_saved(spec.norm, width))


def _sublayer_saved_here(spec: SubLayerSpec, width: int) -> Saved:
    """Return the same by the kernels of this processor: those in C make marks anew."""
    if has_row_kernels(width):
        norms = {"none": 0, "both": 2}.get(spec.norm_placement, 1)
        return Saved(width, 0, norms * width)
    return sublayer_saved(spec, width)


def _norm_saved(spec: NormSpec, width: int) -> int:
    """Return the input; of the RMS norm, made of several operations, also the result unscaled."""
    return 2 * width if spec.kind == "rms" else width


def passing_numbers(spec: ModelSpec) -> int:
    """Return the most numbers of a position in results that pass: those of a feed-forward layer."""
    parts = [part for name in spec.stacks() for part, _ in parts_of(spec, name)]
    return max(getattr(part, "peak_numbers", 0) for part in parts) + 4 * spec.width


def _at_once(memory: TrainingMemory, passing: int, *, accumulated: bool) -> tuple[int, int]:
    """Return the bytes of the model and of the batch at the worst moment.

    Gradients come as activations go, so that only the more of both counts, unless gradients of
    other batches are there already.
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
