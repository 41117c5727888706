"""Parameters, floating-point operations and decoding states of a model, from its spec.

The modules are built on the meta device, one block for each of the pattern, and answer for
themselves (`heedful.nn.mixer`). PyTorch is imported when something is counted, not before.

Legend: D model width, V vocabulary, S source tokens, T target tokens (the end token among them).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from heedful.nn.work import FLOAT32, Work, weight_work

if TYPE_CHECKING:
    from torch import nn

    from heedful.models.block import Block
    from heedful.models.build import AnyModel
    from heedful.models.model_spec import CausalLMSpec, ModelSpec, TranslatorSpec
    from heedful.models.stack_spec import StackSpec
    from heedful.nn.spec import PartSpec

BACKWARD_PER_FORWARD = 2
"""Each product of the forward pass has two in the backward pass: one for each of its factors."""


@lru_cache(maxsize=16)
def built(spec: ModelSpec) -> AnyModel:
    """Return the model on the meta device, whose stacks hold each block of their pattern once."""
    from heedful.models.build import build_on_meta

    # Layers that repeat a block of the pattern cost the same, so each block is built only once.
    once = {
        name: stack.model_copy(update={"num_layers": len(stack.pattern)})
        for name, stack in spec.stacks().items()
    }
    return build_on_meta(spec.with_stacks(once))


def blocks_of(spec: ModelSpec, name: str) -> list[tuple[Block, int]]:
    """Return the blocks of a stack's pattern, each with the number of layers that are like it."""
    blocks: Any = built(spec).stacks()[name].blocks
    return list(zip(blocks, _repeats(spec.stacks()[name]), strict=True))


def _repeats(stack: StackSpec) -> list[int]:
    # The last round may be incomplete: 7 layers of a pattern of 3 have its first block three times.
    rounds, rest = divmod(stack.num_layers, len(stack.pattern))
    return [rounds + (index < rest) for index in range(len(stack.pattern))]


def numel(*modules: nn.Module | None) -> int:
    """Return the number of parameters of modules, counting shared ones for each module."""
    return sum(p.numel() for module in modules if module is not None for p in module.parameters())


def count_parameters(spec: ModelSpec) -> int:
    """Return the number of parameters of a model; a shared tensor counts once.

    Fixed tables (sinusoids, rotary frequencies, ALiBi slopes) are not parameters.
    """
    return sum(parameters_by_module(spec).values())


def parameters_by_module(spec: ModelSpec) -> dict[str, int]:
    """Return the number of parameters by module, in the order of the modules.

    The layers of a stack count together; a tensor that several modules share counts for the first.
    """
    repeats = {name: _repeats(stack) for name, stack in spec.stacks().items()}
    counts: dict[str, int] = {}
    # `named_parameters` yields a shared tensor once, by the first of its names.
    for name, parameter in built(spec).named_parameters():
        path = name.split(".")
        # The stack of a tower lies one level deeper.
        at = path.index("blocks") if "blocks" in path else 0
        times = repeats[path[0]][int(path[at + 1])] if at and path[0] in repeats else 1
        module = module_of(name)
        counts[module] = counts.get(module, 0) + times * parameter.numel()
    return counts


def module_of(name: str) -> str:
    """Return the module of a parameter, without the number of its layer."""
    # A parameter of the model itself, such as a class token, stands for itself.
    return ".".join([part for part in name.split(".")[:-1] if not part.isdigit()][:3]) or name


def part_parameters(part: PartSpec, width: int) -> int:
    """Return the number of parameters of an attention, a feed-forward network or another part.

    Args:
        part: spec of the part.
        width: model width D.
    """
    from heedful.models.build import on_meta
    from heedful.nn.mixer import build_part

    with on_meta():
        return numel(build_part(width, part))


@dataclass(frozen=True, kw_only=True)
class ParameterRow:
    """One line of a parameter table.

    Args:
        part: embeddings, encoder, decoder or output.
        component: the modules that are counted.
        each: parameters (numbers, not bytes) of one such component.
        count: number of such components; 0 for one that shares the tensor of another.
        note: a remark for people, such as what a tensor is shared with.
    """

    part: str
    component: str
    each: int
    count: int = 1
    note: str = ""

    @property
    def total(self) -> int:
        """Parameters of all these components together."""
        return self.each * self.count


def parameter_table(spec: TranslatorSpec) -> list[ParameterRow]:
    """Return every component of a translator with its parameters; the totals are the model's."""
    model: Any = built(spec)
    source, target, output = (
        getattr(model, name)
        for name in ("source_embedding", "target_embedding", "output_projection")
    )
    tables = {"source pieces": source, "target pieces": target}
    if source is target:
        tables = {"source and target pieces": source}
    rows = [
        ParameterRow(part="embeddings", component=component, each=numel(table))
        for component, table in tables.items()
    ]
    # Encoder and decoder have their own positions and norms, even with a shared embedding table.
    embed = model.source_input
    kinds = {f"{spec.embedding.positions.kind} positions": embed.positions}
    for component, module in (kinds | {"segments": embed.segments, "norms": embed.norm}).items():
        if module is not None:
            each = numel(module)
            note = "" if each else "fixed"
            rows.append(
                ParameterRow(part="embeddings", component=component, each=each, count=2, note=note)
            )
    for name in spec.stacks():
        rows += _stack_rows(spec, name)
    row = ParameterRow(part="output", component="output projection", each=numel(output))
    if output is target:
        row = replace(row, count=0, note="the target embedding's tensor")
    rows.append(row)
    if model.output_bias is not None:
        rows.append(ParameterRow(part="output", component="bias", each=model.output_bias.numel()))
    return rows


def _stack_rows(spec: TranslatorSpec, name: str) -> Iterator[ParameterRow]:
    sizes: dict[str, list[tuple[int, int]]] = {}  # parameters and count of each kind of module

    def add(component: str, each: int, count: int = 1) -> None:
        # A fixed bias, such as ALiBi, has no parameters and gets no line.
        if each or not component.startswith("position bias"):
            sizes.setdefault(component, []).append((each, count))

    norms = []
    for block, layers in blocks_of(spec, name):
        for sublayer in block.sublayers:
            part = getattr(block, sublayer.name)
            bias = numel(getattr(part, "position_bias", None))
            component = sublayer.name.replace("feedforward", "feed-forward").replace("_", "-")
            add(component, numel(part) - bias, layers)
            add("position bias", bias, layers)
        norms += [
            (numel(module), layers)
            for child, module in block.named_children()
            if child.endswith("_norm")
        ]
    for each, count in norms:
        add("norms", each, count)
    stack: Any = built(spec).stacks()[name]
    if stack.final_norm is not None:
        add("final norm", numel(stack.final_norm))
    add("position bias of all layers", numel(stack.position_bias))
    for component, counts in sizes.items():
        each, count, note = counts[0][0], sum(count for _, count in counts), ""
        # Components of different sizes share a line, so that `each` times `count` is their total.
        if any(size != each for size, _ in counts):
            each, count = sum(size * count for size, count in counts), 1
            note = f"all layers, {'pruned' if spec.stacks()[name].is_pruned else 'which differ'}"
        yield ParameterRow(part=name, component=component, each=each, count=count, note=note)


@dataclass(frozen=True, kw_only=True)
class TrainingCost:
    """Operations for one sentence pair of a training batch.

    Args:
        source_tokens: S.
        target_tokens: T.
        encoder: forward work of the encoder.
        decoder: forward work of the decoder and the output layer.
    """

    source_tokens: int
    target_tokens: int
    encoder: Work
    decoder: Work

    @property
    def forward(self) -> Work:
        """Forward work for the pair."""
        return self.encoder + self.decoder

    @property
    def total(self) -> Work:
        """Forward and backward work for the pair."""
        return self.forward.times(1 + BACKWARD_PER_FORWARD)

    @property
    def per_target_token(self) -> float:
        """Forward and backward operations for the pair, divided by its target tokens."""
        return self.total.total / self.target_tokens


@dataclass(frozen=True, kw_only=True)
class DecodingCost:
    """Operations for translating one sentence with a cache.

    Args:
        source_tokens: S.
        target_tokens: T, which is also the number of steps.
        beam: number of hypotheses that the search keeps.
        encoding: the encoder, and the keys and values that cross-attention reads; done once.
        first_step: the first step, all hypotheses together.
        last_step: the last step, all hypotheses together.
        steps: all steps together.
    """

    source_tokens: int
    target_tokens: int
    beam: int
    encoding: Work
    first_step: Work
    last_step: Work
    steps: Work

    @property
    def total(self) -> Work:
        """All operations for the sentence."""
        return self.encoding + self.steps


def training_cost(spec: TranslatorSpec, source_tokens: int, target_tokens: int) -> TrainingCost:
    """Return the operations of training on one pair of these lengths, in tokens."""
    decoder = _stack_work(spec, "decoder", target_tokens, target_tokens, source_tokens)
    reading = _reading_work(spec, source_tokens)
    return TrainingCost(
        source_tokens=source_tokens,
        target_tokens=target_tokens,
        encoder=encoding_work(spec, source_tokens),
        decoder=decoder + reading + _output_work(spec, target_tokens),
    )


def encoding_work(spec: ModelSpec, tokens: int) -> Work:
    """Return the forward work of the encoder for one text."""
    return _stack_work(spec, "encoder", tokens, tokens)


def text_work(spec: ModelSpec, tokens: int) -> Work:
    """Return the forward work of a language model for one text, with the scores of each token."""
    return _stack_work(spec, "decoder", tokens, tokens) + _output_work(spec, tokens)


def segment_work(spec: CausalLMSpec, tokens: int) -> Work:
    """Return the forward work for a segment of a text, whose memory is projected anew."""
    assert spec.memory is not None
    works = (
        part.segment_work(tokens, spec.memory).times(layers)
        if hasattr(part, "segment_work")
        else part.work(tokens, tokens).times(layers)
        for part, layers in parts_of(spec, "decoder")
    )
    return _sum(works) + _output_work(spec, tokens)


def image_work(spec: Any) -> Work:
    """Return the forward work for one image; `output` classifies it, or finds its codes."""
    model: Any = built(spec)
    if "decoder" in spec.stacks():
        maps: Work = model.map_work()
        stacks = _stack_work(spec, "decoder", spec.num_states, spec.num_states)
        return maps + stacks + encoding_work(spec, spec.num_states)
    names = ("pooler", "classifier", "distillation_classifier")
    output = weight_work(*(m for n in names if (m := getattr(model, n, None)) is not None))
    if spec.kind == "resnet":
        return Work(weights=model.convolution_work(), output=output)
    # [CLS] is a state and not a patch.
    patches = spec.num_states - spec.num_tokens
    own = Work(weights=patches * weight_work(model.patches), output=output + model.pooling_work())
    return own + encoding_work(spec, spec.num_states)


def step_work(spec: ModelSpec, source_tokens: int, step: int, beam: int = 1) -> Work:
    """Return the forward work of one decoding step with a cache.

    Args:
        spec: a model that generates.
        source_tokens: S, the keys of cross-attention; unused for other models.
        step: number of the step, from 1, and of the tokens that a hypothesis has after it.
        beam: number of hypotheses. They share a row, and each is scored against all tokens of the
            row; in long searches there are fewer, as tokens that no hypothesis needs are dropped.
    """
    token = _stack_work(spec, "decoder", 1, step * beam, source_tokens) + _output_work(spec, 1)
    return token.times(beam)


def decoding_cost(
    spec: TranslatorSpec, source_tokens: int, target_tokens: int, beam: int = 1
) -> DecodingCost:
    """Return the operations to translate one sentence of these lengths, in tokens."""
    first = step_work(spec, source_tokens, 1, beam)
    last = step_work(spec, source_tokens, target_tokens, beam)
    # Steps differ only in the length of the past, so their sum is that of an arithmetic series.
    both = (first + last).times(target_tokens)
    return DecodingCost(
        source_tokens=source_tokens,
        target_tokens=target_tokens,
        beam=beam,
        encoding=encoding_work(spec, source_tokens) + _reading_work(spec, source_tokens),
        first_step=first,
        last_step=last,
        steps=Work(
            weights=both.weights // 2, attention=both.attention // 2, output=both.output // 2
        ),
    )


def _stack_work(
    spec: ModelSpec, name: str, queries: int, keys: int, memory_tokens: int = 0
) -> Work:
    """Return the work of new tokens in all layers; the memory has been read already."""
    return _sum(
        part.work(queries, memory_tokens if part in block.readers() else keys).times(layers)
        for block, layers in blocks_of(spec, name)
        for part in block.parts()
    )


def _reading_work(spec: ModelSpec, memory_tokens: int) -> Work:
    """Return the work of reading a memory in all layers of the decoder."""
    readers = readers_of(spec, "decoder")
    return _sum(part.read_work(memory_tokens).times(layers) for part, layers in readers)


def _output_work(spec: ModelSpec, tokens: int) -> Work:
    model: Any = built(spec)
    # A tied projection is a matmul as well, though it has no parameters of its own.
    return Work(output=2 * numel(model.output_projection) * tokens)


def parts_of(spec: ModelSpec, name: str) -> Iterator[tuple[Any, int]]:
    """Yield the parts of a stack's blocks, each with the number of layers that are like it."""
    for block, layers in blocks_of(spec, name):
        for part in block.parts():
            yield part, layers


def readers_of(spec: ModelSpec, name: str) -> Iterator[tuple[Any, int]]:
    """Yield the parts of a stack that read an encoder's output, each with its number of layers."""
    for block, layers in blocks_of(spec, name):
        for part in block.readers():
            if part is not None:
                yield part, layers


def _sum(works: Iterable[Work]) -> Work:
    return sum(works, Work())


def state_bytes(
    spec: ModelSpec, tokens: int, *, memory_tokens: int = 0, number_bytes: int = FLOAT32
) -> tuple[int, int]:
    """Return the bytes that the decoder remembers of one text and of the memory it reads.

    Args:
        spec: a model that generates.
        tokens: number of tokens of one hypothesis.
        memory_tokens: number of tokens of the source.
        number_bytes: size of an element of keys and values: `FLOAT32` or `BFLOAT16`.
    """
    own = cross = 0
    for part, layers in readers_of(spec, "decoder"):
        cross += layers * part.state_bytes(memory_tokens, number_bytes)
        own += layers * getattr(part, "beam_bytes", 0)
    for part, layers in parts_of(spec, "decoder"):
        if hasattr(part, "initial_state"):
            own += layers * part.state_bytes(tokens, number_bytes)
    return own, cross


@dataclass(frozen=True, kw_only=True)
class DecodingMemory:
    """Bytes of decoding with a cache.

    Args:
        weights: bytes of the parameters.
        cross_per_source_token: keys and values of every layer for one source token; all
            hypotheses of a sentence share them.
        self_per_target_token: keys and values of every layer for one token of one hypothesis.
        cross_cache: bytes of keys and values of the sources, of the whole batch.
        self_cache: bytes of keys and values of the hypotheses, of the whole batch.
    """

    weights: int
    cross_per_source_token: int
    self_per_target_token: int
    cross_cache: int
    self_cache: int

    @property
    def total(self) -> int:
        """Weights and caches, in bytes."""
        return self.weights + self.cross_cache + self.self_cache


def decoding_memory(
    spec: ModelSpec,
    source_tokens: int,
    target_tokens: int,
    *,
    sentences: int = 1,
    beam: int = 1,
    number_bytes: int = FLOAT32,
) -> DecodingMemory:
    """Return the bytes of decoding `sentences` of these lengths together, with their states.

    Args:
        spec: a model that generates.
        source_tokens: length of each source with its padding, for a translator.
        target_tokens: length of each hypothesis at the end of the search.
        sentences: number of sentences that are decoded together.
        beam: hypotheses for each sentence.
        number_bytes: size of an element of weights, keys and values: `FLOAT32` or `BFLOAT16`.
    """

    def states(tokens: int, memory_tokens: int) -> tuple[int, int]:
        return state_bytes(spec, tokens, memory_tokens=memory_tokens, number_bytes=number_bytes)

    own, cross = states(target_tokens, source_tokens)
    # Computed as a difference, as recurrent states take bytes that do not grow with the tokens.
    (none, _), (one, per_source_token) = states(0, 0), states(1, 1)
    return DecodingMemory(
        weights=count_parameters(spec) * number_bytes,
        cross_per_source_token=per_source_token,
        self_per_target_token=one - none,
        cross_cache=cross * sentences,
        self_cache=own * sentences * beam,
    )


def human_bytes(count: int) -> str:
    """Return bytes with a decimal unit: 1 GB is 10⁹ bytes."""
    size, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    # Numbers from 999.5 on would be rounded to 1000, four digits.
    while abs(size) >= 999.5 and len(units) > 1:
        size /= 1000
        del units[0]
    digits = 0 if units[0] == "B" or abs(size) >= 99.95 else 1
    return f"{size:.{digits}f} {units[0]}"


def largest(fits: Callable[[int], bool], most: int | None = None) -> int:
    """Return the largest number that fits, where smaller ones fit too; 0 if not even 1 does.

    Args:
        fits: predicate of the numbers that fit.
        most: largest number to try; None for no limit.
    """
    if not fits(1):
        return 0
    # Doubling, then bisection: each call of `fits` may count a whole model.
    low, high = 1, 2
    while (most is None or high <= most) and fits(high):
        low, high = high, 2 * high
    if most is not None:
        high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
