"""Parts of a model by stable addresses; taken away for a while, or replaced by their means.

A part is replaced by another object, and the original is put back. So no weight is ever changed,
and the model computes bit for bit the same afterwards.
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

from heedful.engines.inference.engine_parts import computed_by_definition
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
    """A part of a model that can be taken away.

    Args:
        address: such as `decoder.3.cross.head.2`.
        kind: of the part.
        owner: the module that holds it: the attention for its heads, the block for the rest of it.
        name: of the attribute that holds it, or of the sub-layer whose residual connection it is.
        adds: whether its output is a vector that is added to something, which another can replace.
        head: its number, for a head.
        like: [D], zeros of the type and device of the vectors that it adds to the stream.
        also: further places, owner and attribute, that hold None when it is off.
        can_be_cut: True for a head that can be left out of the weights for good.
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
    """Return addresses of the parts of a model that can be taken away.

    Args:
        model: of any kind.
        what: only those that match: `*` stands for one part of an address, `**` for any number.

    Raises:
        ModelError: when a pattern matches nothing, naming near addresses.
    """
    return tuple(part.address for part in parts_matching(model, what))


def heads(model: AnyModel) -> tuple[str, ...]:
    """Return addresses of all heads that a model has."""
    return tuple(part.address for part in all_parts(model) if part.kind == "head")


def all_parts(model: AnyModel) -> tuple[ModelPart, ...]:
    """Return every part, in the order of a pass."""
    return tuple(part for name in model.stacks() for part in _parts_of_stack(model, name))


def parts_matching(model: AnyModel, what: str | Iterable[str]) -> list[ModelPart]:
    """Return parts by addresses and patterns, each once, in the order of a pass.

    Raises:
        ModelError: when a pattern matches nothing, naming near addresses.
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
    like = next(model.parameters()).detach().new_zeros(model.spec.width)
    owner: Any = model.input_modules()[name]
    also = [
        place
        for block in stack.blocks
        for sublayer in sublayers(block).values()
        for place in _position_places(sublayer)
    ]
    if stack.position_bias is not None:
        also.append((stack, "position_bias"))
    added = owner.positions is not None
    if added or also:
        place = f"{name}.positions"
        yield ModelPart(place, "positions", owner, "positions", added, like=like, also=tuple(also))
    if getattr(owner, "norm", None) is not None:
        yield ModelPart(f"{name}.embedding.norm", "norm", owner, "norm")
    for number, block in enumerate(stack.blocks):
        for address, sublayer in sublayers(block).items():
            place = f"{name}.{number}.{address}"
            yield from _parts_of_sublayer(block, address, sublayer, place, like)
    if stack.final_norm is not None:
        yield ModelPart(f"{name}.norm", "norm", stack, "final_norm")


def _position_places(sublayer: InspectedSubLayer) -> list[tuple[nn.Module, str]]:
    """Return the attributes of a self-attention that depend on positions."""
    module, names = sublayer.module, ("rotary", "position_bias")
    if sublayer.is_cross:
        return []
    return [(module, name) for name in names if getattr(module, name, None) is not None]


def _parts_of_sublayer(
    block: Any, name: str, sublayer: InspectedSubLayer, place: str, like: Tensor
) -> Iterator[ModelPart]:
    if not sublayer.has_output_map:
        yield ModelPart(place, "sub-layer", block, sublayer.name, True, like=like)
    else:
        attention = sublayer.module
        yield ModelPart(place, "attention", attention, "output", True, like=like)
        for head in sublayer.heads:
            yield ModelPart(
                f"{place}.head.{head}",
                "head",
                attention,
                "output",
                True,
                head,
                like,
                can_be_cut=sublayer.has_softmax,
            )
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
    """Take parts of a model away within a context, and put them back afterwards.

    When off, a head, a sub-layer or a position encoding adds nothing, a residual connection is cut
    (only the sub-layer's output goes on), a norm returns its input, and the scale of attention is
    1. The model is changed for everyone who uses it meanwhile. Contexts may be nested.

    Args:
        model: of any kind.
        what: addresses, in which `*` stands for one part; `heedful.inspect.parts` lists a model's:
            `decoder.3.cross.head.2`, `decoder.3.cross`, `encoder.1.feedforward`,
            `encoder.1.self.residual`, `encoder.1.self.norm`, `encoder.1.self.scale`,
            `encoder.positions`.
        how: `off`; `zero`, the same for parts that are added to something, and refused for the
            rest; `mean`, the output of a head, a sub-layer or an added position encoding is
            replaced by its mean over a corpus.
        means: for `mean`, from `mean_outputs`.

    Yields:
        The addresses that are ablated.

    Raises:
        ModelError: when the model has no such part, naming near ones, or attention of one that was
            loaded to run is to lose a head or all of them: its weights cannot be read any more.
        ConfigError: when a part cannot be ablated so, or means are missing.
    """
    if how not in get_args(AblationMode):
        modes = ", ".join(get_args(AblationMode))
        raise ConfigError(f"There is no ablation mode {how!r}", remedy=f"Choose {modes}")
    parts = {part: _replacement(part, how, means) for part in parts_matching(model, what)}
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
        for owner, name, value in reversed(before):
            setattr(owner, name, value)


def mean_outputs(
    subject: Subject, readings: Sequence[ModelInput], *, batch_tokens: int = BATCH_TOKENS
) -> dict[str, Tensor]:
    """Compute the mean output of every part that `ablated` can replace by its mean.

    Args:
        subject: the model.
        readings: the corpus, from `read_all` or `see`.
        batch_tokens: positions that go through the model together; changes no result.

    Returns:
        Means over all tokens, by address: for each head [E], the mixed values before the output
        projection; for each sub-layer and each added position encoding [D]. In the type of the
        weights.

    Raises:
        DataError: when there is no text.
    """
    if not readings:
        raise DataError("There is no text to take means over")
    model = subject.model
    sums = _Sums([part for part in all_parts(model) if part.adds])
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
    """Adds up the outputs of parts as they come, and keeps none of them.

    Args:
        parts: those that add something.
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
        """Count vectors [B, L, ·] of a part, without those of padding."""
        stack = address.partition(".")[0]
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
        ConfigError: when there is none.
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
    # Several heads of an attention, and several residual connections of a block, share a place.
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
            whole[part.owner] = _vector(part, value)
        elif part.kind == "residual":
            cuts[part.owner] = cuts.get(part.owner, part.owner.cut) | {part.name}
        elif part.kind == "norm":
            changes.append((part.owner, part.name, nn.Identity()))
        elif part.kind == "scale":
            changes.append((part.owner, "scale", 1.0))
        else:  # another sub-layer, or positions, which need not be added
            if part.adds:
                changes.append((part.owner, part.name, Constant(_vector(part, value))))
            changes += [(owner, name, None) for owner, name in part.also]
    for attention in {**heads, **whole}:
        if attention in whole:
            output = _Map(torch.zeros_like(attention.output.weight), whole[attention])
        else:
            output = _without(attention, heads[attention])
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
    """Return the same vector [D] for every token."""

    def __init__(self, vector: Tensor) -> None:
        super().__init__()
        self.register_buffer("vector", vector.detach(), persistent=False)
        self.vector: Tensor

    def forward(self, x: Tensor, *_: object) -> Tensor:
        """States [..., D], or positions [...] int64, to [..., D]."""
        tokens = x.shape[:-1] if x.is_floating_point() else x.shape
        return self.vector.expand(*tokens, -1)


class _Map(nn.Module):
    """A linear map with given weights; made without drawing random ones."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)
        self.weight: Tensor
        self.bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


def _without(attention: Any, heads: Mapping[int, Tensor | None]) -> _Map:
    """The output projection that ignores some heads, with their means in its bias."""
    output = attention.output
    weight = output.weight.detach().clone()
    bias = None if output.bias is None else output.bias.detach().clone()
    for head, mean in heads.items():
        first = heads_of(attention).index(head) * attention.head_width
        columns = slice(first, first + attention.head_width)
        if mean is not None:
            constant = weight[:, columns] @ mean.to(weight)
            bias = constant if bias is None else bias + constant
        weight[:, columns] = 0.0
    return _Map(weight, bias)
