"""The parts of a model that can be taken away, by stable addresses."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor, nn

from heedful.errors import ModelError
from heedful.inspect.subject import SubLayer, sublayers
from heedful.nn.capture import address_pattern

if TYPE_CHECKING:
    from heedful.models.build import AnyModel

Kind = Literal["head", "attention", "sub-layer", "residual", "norm", "scale", "positions"]


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
    """

    address: str
    kind: Kind
    owner: Any
    name: str
    adds: bool = False
    head: int | None = None
    like: Tensor | None = None
    also: tuple[tuple[nn.Module, str], ...] = ()


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
    also = [place for block in stack.blocks for place in _position_places(block)]
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


def _position_places(block: Any) -> list[tuple[nn.Module, str]]:
    """Places of a block's self-attention that hold something that depends on positions."""
    attention = block.self_attention
    names = ("rotary", "position_bias")
    return [(attention, name) for name in names if getattr(attention, name, None) is not None]


def _parts_of_sublayer(
    block: Any, name: str, sublayer: SubLayer, place: str, like: Tensor
) -> Iterator[ModelPart]:
    if not sublayer.is_attention:
        yield ModelPart(place, "sub-layer", block, sublayer.name, True, like=like)
    else:
        attention = sublayer.module
        yield ModelPart(place, "attention", attention, "output", True, like=like)
        for head in attention.kept.heads:
            yield ModelPart(f"{place}.head.{head}", "head", attention, "output", True, head, like)
        yield ModelPart(f"{place}.scale", "scale", attention, "scale")
        if name == "self" and (also := tuple(_position_places(block))):
            yield ModelPart(f"{place}.positions", "positions", attention, "", also=also)
    yield ModelPart(f"{place}.residual", "residual", block, name)
    if sublayer.norm is not None:
        yield ModelPart(f"{place}.norm", "norm", block, f"{sublayer.name}_norm")
