"""Ablation: parts of a model, named by addresses, are switched off or replaced by their means.

A part is replaced by another object, and the original is restored afterwards. No weight is ever
changed, so the model then computes the same results bit for bit.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.engines.class_exchange import computed_by_definition
from heedful.errors import ConfigError, DataError, ModelError
from heedful.inspect.readings import (
    BATCH_TOKENS,
    ModelInput,
    batches,
    stack_positions,
    tensors,
)
from heedful.inspect.subject import InspectedSubLayer, Subject, heads_of, inference, run, sublayers
from heedful.nn.capture import Capture, address_pattern

if TYPE_CHECKING:
    from heedful.models.build import AnyModel


PartKind = Literal["head", "attention", "sub-layer", "residual", "norm", "scale", "positions"]


@dataclass(frozen=True, eq=False)
class ModelPart:
    """A part of a model that can be ablated.

    Args:
        address: address of the part, e.g. `decoder.3.cross.head.2`.
        kind: kind of the part.
        owner: module that holds the part: the attention for its heads, the block for a sub-layer,
            its norms and its residual connection.
        name: attribute of the owner that holds the part; for a residual connection, the address
            name of its sub-layer.
        adds: True for a part that adds a vector to others, so that a mean can replace its output.
        head: index of the head; None for all other kinds.
        like: [D] zeros with the dtype and device of the vectors that the part adds to the stream.
        also: further attributes, as pairs of owner and name, that are None while the part is off.
        can_be_cut: True for a head that pruning can remove from the weights.
    """

    address: str
    kind: PartKind
    owner: Any
    name: str
    adds: bool = False
    head: int | None = None
    like: Tensor | None = None
    also: tuple[tuple[nn.Module, str], ...] = ()
    can_be_cut: bool = False


def parts(model: AnyModel, what: str | Iterable[str] = "**") -> tuple[str, ...]:
    """Return the addresses of a model's parts that can be ablated.

    Args:
        model: a model of any kind.
        what: patterns of addresses; `*` matches one component of an address, `**` any number.

    Raises:
        ModelError: when a pattern matches nothing; near addresses are named.
    """
    return tuple(part.address for part in parts_matching(model, what))


def heads(model: AnyModel) -> tuple[str, ...]:
    """Return the addresses of all heads of a model."""
    return tuple(part.address for part in all_parts(model) if part.kind == "head")


def usual_parts(model: AnyModel) -> tuple[str, ...]:
    """Return addresses of the parts to compare: heads, or sub-layers of a model without heads.

    Raises:
        ModelError: when the model has neither.
    """
    found = heads(model) or tuple(p.address for p in all_parts(model) if p.kind == "sub-layer")
    if not found:
        raise ModelError(
            "The model has no heads and no sub-layers that could be removed",
            remedy="Name other parts of it; `heedful ablate MODEL --parts` lists them",
        )
    return found


def all_parts(model: AnyModel) -> tuple[ModelPart, ...]:
    """Return every part, in the order of a pass."""
    return tuple(part for name in model.stacks() for part in _parts_of_stack(model, name))


def parts_matching(model: AnyModel, what: str | Iterable[str]) -> list[ModelPart]:
    """Return parts by addresses and patterns, each once, in the order of a pass.

    Raises:
        ModelError: when a pattern matches nothing; near addresses are named.
    """
    everything = all_parts(model)
    chosen: set[str] = set()
    for each in [what] if isinstance(what, str) else what:
        pattern = address_pattern(each)
        matching = {part.address for part in everything if pattern.fullmatch(part.address)}
        if not matching:
            known = [part.address for part in everything]
            near = difflib.get_close_matches(each, known, n=4, cutoff=0.5)
            raise ModelError(
                f"The model has no part {each!r}",
                remedy=f"Near ones: {', '.join(near)}" if near else f"It begins with {known[0]}",
            )
        chosen |= matching
    return [part for part in everything if part.address in chosen]


def _parts_of_stack(model: AnyModel, name: str) -> Iterator[ModelPart]:
    stack = model.stacks()[name]
    # Only dtype and device matter: a replacement vector must not raise the precision of the stream.
    like = next(model.parameters()).detach().new_zeros(model.spec.width)
    owner: Any = model.input_modules()[name]
    # Rotary embeddings and position biases are in every self-attention, so `encoder.positions`
    # switches them all off beside the encoding that is added to the embedding.
    also = [
        place
        for block in stack.blocks
        for sublayer in sublayers(block).values()
        for place in _position_places(sublayer)
    ]
    # T5 keeps one table of relative biases, which all layers of the stack share.
    if stack.position_bias is not None:
        also.append((stack, "position_bias"))
    # Rotary positions add nothing to the embedding, so they can be off but have no mean output.
    added = owner.positions is not None
    if added or also:
        place = f"{name}.positions"
        yield ModelPart(place, "positions", owner, "positions", added, like=like, also=tuple(also))
    # BERT's embeddings have a layer norm of their own; most other models have none.
    if getattr(owner, "norm", None) is not None:
        yield ModelPart(f"{name}.embedding.norm", "norm", owner, "norm")
    for number, block in enumerate(stack.blocks):
        for address, sublayer in sublayers(block).items():
            place = f"{name}.{number}.{address}"
            yield from _parts_of_sublayer(block, address, sublayer, place, like)
    if stack.final_norm is not None:
        yield ModelPart(f"{name}.norm", "norm", stack, "final_norm")


def _position_places(sublayer: InspectedSubLayer) -> list[tuple[nn.Module, str]]:
    """Return the attributes of a self-attention that encode positions."""
    module, names = sublayer.module, ("rotary", "position_bias")
    # Queries of the decoder and keys of the encoder have no common positions to compare.
    if sublayer.is_cross:
        return []
    return [(module, name) for name in names if getattr(module, name, None) is not None]


def _parts_of_sublayer(
    block: Any, name: str, sublayer: InspectedSubLayer, place: str, like: Tensor
) -> Iterator[ModelPart]:
    # In a mixer without heads and output projection, only the whole module can be replaced.
    if not sublayer.has_output_map:
        yield ModelPart(place, "sub-layer", block, sublayer.name, True, like=like)
    else:
        attention = sublayer.module
        # The output projection is replaced, not the module: the attention still returns its cache
        # and offers its weights to a capture.
        yield ModelPart(place, "attention", attention, "output", True, like=like)
        for head in sublayer.heads:
            yield ModelPart(
                f"{place}.head.{head}",
                "head",
                attention,
                "output",  # a head is a group of columns of the output projection
                True,
                head,
                like,
                can_be_cut=sublayer.has_softmax,
            )
        # Linear attention divides by the sum of a row instead of scaling its scores.
        if sublayer.has_softmax:
            yield ModelPart(f"{place}.scale", "scale", attention, "scale")
        if also := tuple(_position_places(sublayer)):
            yield ModelPart(f"{place}.positions", "positions", attention, "", also=also)
    yield ModelPart(f"{place}.residual", "residual", block, name)
    if sublayer.norm is not None:
        yield ModelPart(f"{place}.norm", "norm", block, f"{sublayer.name}_norm")
    if sublayer.output_norm is not None:
        yield ModelPart(f"{place}.output_norm", "norm", block, f"{sublayer.name}_output_norm")


AblationMode = Literal["off", "zero", "mean"]

Change = tuple[object, str, Any]
"""An object, the name of an attribute of it, and its new value."""


@contextmanager
def ablated(
    model: AnyModel,
    what: str | Iterable[str],
    how: AblationMode = "off",
    *,
    means: Mapping[str, Tensor] | None = None,
) -> Iterator[tuple[str, ...]]:
    """Ablate parts of a model within a context, and restore them afterwards.

    When off, a head, a sub-layer or a position encoding adds nothing, a residual connection is cut
    (only the sub-layer's output goes on), a norm returns its input, and the scale of attention is
    1. Other users of the same model object see the change too. Contexts may be nested.

    Args:
        model: a model of any kind.
        what: addresses or patterns of parts, listed for a model by `heedful.apps.pruning.parts`:
            `decoder.3.cross.head.2`, `decoder.3.cross`, `encoder.1.feedforward`,
            `encoder.1.self.residual`, `encoder.1.self.norm`, `encoder.1.self.scale`,
            `encoder.positions`.
        how: ablation mode. `off` switches any part off; `zero` does the same but refuses parts
            that add no vector; `mean` replaces the output of a head, a sub-layer or an added
            position encoding by its mean over a corpus.
        means: mean outputs by address, from `mean_outputs`; only used by `mean`.

    Yields:
        The addresses that are ablated.

    Raises:
        ModelError: when the model has no such part (near addresses are named), or when heads are
            to be ablated in a model prepared for inference, whose weights are packed.
        ConfigError: when a part does not support the mode, or its mean is missing.
    """
    if how not in get_args(AblationMode):
        modes = ", ".join(get_args(AblationMode))
        raise ConfigError(f"There is no ablation mode {how!r}", remedy=f"Choose {modes}")
    # All replacements are computed before the first attribute is set, so an error leaves
    # the model untouched.
    parts = {part: _replacement(part, how, means) for part in parts_matching(model, what)}
    # Kernels of the inference engine read packed weights without calling the modules that
    # are replaced here.
    with computed_by_definition(model), set_attributes(_changes(parts)):
        yield tuple(part.address for part in parts)


@contextmanager
def set_attributes(changes: Sequence[Change]) -> Iterator[None]:
    """Set attributes of objects within a context."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    try:
        for owner, name, value in changes:
            setattr(owner, name, value)
        yield
    finally:
        # Restored in reverse order: if one attribute was set twice, its original value is set last.
        for owner, name, value in reversed(before):
            setattr(owner, name, value)


def mean_outputs(
    subject: Subject, readings: Sequence[ModelInput], *, batch_tokens: int = BATCH_TOKENS
) -> dict[str, Tensor]:
    """Compute the mean output of every part that `ablated` can replace by its mean.

    Args:
        subject: the model.
        readings: the corpus, from `read_all` or `see`.
        batch_tokens: positions per batch; changes no result.

    Returns:
        Means over all tokens by address, in the dtype of the weights: for each head [E], its
        context vector before the output projection; for each sub-layer and each added position
        encoding [D].

    Raises:
        DataError: when there is no text.
    """
    if not readings:
        raise DataError("There is no text to take means over")
    model = subject.model
    sums = _Sums([part for part in all_parts(model) if part.adds])
    # Captures do not include the vectors of the position encoding, so the module is called again.
    embedded: dict[str, Any] = {
        stack: module.positions
        for stack, module in model.input_modules().items()
        if module.positions is not None
    }
    for numbers in batches(readings, batch_tokens):
        batch = [readings[number] for number in numbers]
        inputs = tensors(subject, batch)
        sums.positions = {name: stack_positions(batch, inputs, name) for name in model.stacks()}
        run(model, inputs, sums)
        with inference(model):
            for stack, encode in embedded.items():
                sums.add(f"{stack}.positions", encode(sums.positions[stack]))
    return sums.means()


class _Sums(Capture):
    """A capture that sums the outputs of parts during a pass and stores no tensor.

    Args:
        parts: parts whose output is added to the stream.
    """

    def __init__(self, parts: Sequence[ModelPart]) -> None:
        self.parts: dict[str, list[ModelPart]] = {}
        for part in parts:
            if part.kind != "positions":
                place, head, _ = part.address.partition(".head.")
                self.parts.setdefault(f"{place}.{'context' if head else 'output'}", []).append(part)
        super().__init__(self.parts)
        self.positions: dict[str, Tensor] = {}
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}
        self.dtypes = {part.address: part.like.dtype for part in parts if part.like is not None}

    def keep(self, address: str, value: Tensor) -> None:
        for part in self.parts[address]:
            self.add(part.address, value if part.head is None else value[:, part.head])

    def add(self, address: str, value: Tensor) -> None:
        """Add the vectors [B, L, ·] of a part to its sum, without those of padding."""
        stack = address.partition(".")[0]
        # Summed in float64, so the split into batches changes no mean of float32 outputs.
        real = value[self.positions[stack] >= 0].double()
        self.sums[address] = self.sums.get(address, 0.0) + real.sum(0)
        self.counts[address] = self.counts.get(address, 0) + len(real)

    def means(self) -> dict[str, Tensor]:
        return {
            address: (total / self.counts[address]).to(self.dtypes[address])
            for address, total in self.sums.items()
        }


def _replacement(
    part: ModelPart, how: AblationMode, means: Mapping[str, Tensor] | None
) -> Tensor | None:
    """Return the vector that replaces the output of a part; None for nothing.

    Raises:
        ConfigError: when the part has no output to replace, or no mean was given for it.
    """
    if how == "off" or (how == "zero" and part.adds):
        return None
    if not part.adds:
        raise ConfigError(
            f"A {part.kind} part has no output to replace by its {how}",
            where=part.address,
            remedy="It can only be off",
        )
    if means is None or part.address not in means:
        raise ConfigError(
            "There is no mean of this part",
            where=part.address,
            remedy="Give means=mean_outputs(model, readings) of a corpus",
        )
    return means[part.address]


def _changes(parts: Mapping[ModelPart, Tensor | None]) -> list[Change]:
    changes: list[Change] = []
    # Heads of an attention, and residual connections of a block, share one attribute to replace.
    heads: dict[Any, dict[int, Tensor | None]] = {}
    whole: dict[Any, Tensor] = {}
    cuts: dict[nn.Module, frozenset[str]] = {}
    for part, value in parts.items():
        if part.kind == "head":
            assert part.head is not None
            _check_readable(part)
            heads.setdefault(part.owner, {})[part.head] = value
        elif part.kind == "attention":
            _check_readable(part)
            # An ablated attention includes its heads, so ablations of its single heads are ignored.
            whole[part.owner] = _vector(part, value)
        elif part.kind == "residual":
            # The residual connection is no module; the block reads the names of cut
            # sub-layers from `cut`.
            cuts[part.owner] = cuts.get(part.owner, part.owner.cut) | {part.name}
        elif part.kind == "norm":
            changes.append((part.owner, part.name, nn.Identity()))
        elif part.kind == "scale":
            changes.append((part.owner, "scale", 1.0))
        else:  # another sub-layer, or positions, also those that are not added
            if part.adds:
                changes.append((part.owner, part.name, Constant(_vector(part, value))))
            changes += [(owner, name, None) for owner, name in part.also]
    # One replacement per projection: a second one would start from the original and undo the first.
    for attention in {**heads, **whole}:
        if attention in whole:
            # Zero weights and a constant bias: every token gets the same vector.
            output = _Map(torch.zeros_like(attention.output.weight), whole[attention])
        else:
            output = _without_heads(attention, heads[attention])
        changes.append((attention, "output", output))
    return [*changes, *((block, "cut", cut) for block, cut in cuts.items())]


def _check_readable(part: ModelPart) -> None:
    if not isinstance(part.owner.output, nn.Linear | _Map):
        raise ModelError(
            "The model was loaded to run, with weights laid out for the processor: attention can "
            "no longer be taken apart",
            where=part.address,
            remedy="Load it by heedful.models.checkpoint.load_model, which leaves weights alone",
        )


def _vector(part: ModelPart, value: Tensor | None) -> Tensor:
    assert part.like is not None
    return part.like if value is None else value.to(part.like)


class Constant(nn.Module):
    """A module that returns the same vector [D] for every token."""

    def __init__(self, vector: Tensor) -> None:
        super().__init__()
        self.register_buffer("vector", vector.detach(), persistent=False)
        self.vector: Tensor

    def forward(self, x: Tensor, *_: object) -> Tensor:
        """Return [..., D] for states [..., D] or positions [...] int64."""
        # A position encoding is called with integer positions, a sub-layer with states.
        tokens = x.shape[:-1] if x.is_floating_point() else x.shape
        return self.vector.expand(*tokens, -1)

    def read(self, memory: object) -> None:
        """Return no projections of a memory; blocks call this method of their cross mixer."""


class _Map(nn.Module):
    """A linear layer with given weights, without the random initialisation of `nn.Linear`."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)
        self.weight: Tensor
        self.bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


def _without_heads(attention: Any, heads: Mapping[int, Tensor | None]) -> _Map:
    """Return an output projection that ignores some heads and adds their means in its bias."""
    output = attention.output
    weight = output.weight.detach().clone()
    bias = None if output.bias is None else output.bias.detach().clone()
    for head, mean in heads.items():
        first = heads_of(attention).index(head) * attention.head_width
        # [D, H * E]: columns of one head, in the order of the heads that were not pruned.
        columns = slice(first, first + attention.head_width)
        if mean is not None:
            # W (x with the head's mean) = W' x + W_h mean, so the mean of a head is added to the
            # bias.
            constant = weight[:, columns] @ mean.to(weight)
            bias = constant if bias is None else bias + constant
        weight[:, columns] = 0.0
    return _Map(weight, bias)
