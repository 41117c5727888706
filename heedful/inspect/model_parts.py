"""The parts of a model that can be taken away, by stable addresses."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from heedful.errors import ModelError
from heedful.models.block import Block
from heedful.models.stack import Stack
from heedful.models.vision import VisionModel
from heedful.nn.attention import Attention
from heedful.nn.capture import address_pattern
from heedful.nn.embeddings import InputEmbedding

Kind = Literal["head", "sub-layer", "residual", "norm", "scale", "positions"]

_SUBLAYERS = {
    "self": "self_attention",
    "cross": "cross_attention",
    "feedforward": "feedforward",
}
_OWN_INPUT = {"encoder": "source_input", "decoder": "target_input"}


@dataclass(frozen=True, eq=False)
class ModelPart:
    """Something in a model that can be taken away.

    Args:
        address: such as `decoder.3.cross.head.2`.
        kind: what it is.
        owner: the module in which it is: the attention for its heads, the block for the rest of it.
        name: of the attribute that holds it, or of the sub-layer whose residual connection it is.
        adds: whether it gives vectors that are added to something, which others may stand for.
        head: its number, for a head.
        like: [D], zeros of the type and device of the vectors that it adds to the stream.
        also: further places, owner and name, that hold nothing when it is off.
    """

    address: str
    kind: Kind
    owner: nn.Module
    name: str
    adds: bool = False
    head: int | None = None
    like: Tensor | None = None
    also: tuple[tuple[nn.Module, str], ...] = ()


def parts(model: nn.Module, what: str | Iterable[str] = "**") -> tuple[str, ...]:
    """Addresses of everything in a model that can be taken away.

    Args:
        model: of any class.
        what: only those that match: `*` stands for one part of an address, `**` for any number.

    Raises:
        ModelError: when a pattern matches nothing, naming near addresses.
    """
    return tuple(part.address for part in parts_matching(model, what))


def heads(model: nn.Module) -> tuple[str, ...]:
    """Addresses of all heads that a model has."""
    return tuple(part.address for part in all_parts(model) if part.kind == "head")


def all_parts(model: nn.Module) -> tuple[ModelPart, ...]:
    """Every part, in the order of a pass."""
    found: list[ModelPart] = []
    for name in ("encoder", "decoder"):
        stack = getattr(model, name, None)
        if isinstance(stack, Stack):
            found += _of_stack(model, stack, name)
    return tuple(found)


def parts_matching(model: nn.Module, what: str | Iterable[str]) -> list[ModelPart]:
    """Parts by addresses and patterns, each once, in the order of a pass.

    Raises:
        ModelError: when one matches nothing, naming near addresses.
    """
    everything = all_parts(model)
    wanted = [what] if isinstance(what, str) else list(what)
    chosen: set[str] = set()
    for each in wanted:
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


def input_of(model: nn.Module, stack: str) -> nn.Module:
    """The module that adds positions to what a stack reads, and norms it where it does."""
    found = getattr(model, _OWN_INPUT[stack], None) or getattr(model, "input", model)
    assert isinstance(found, InputEmbedding | VisionModel)
    return found


def _of_stack(model: nn.Module, stack: Stack, name: str) -> Iterator[ModelPart]:
    blocks = [block for block in stack.blocks if isinstance(block, Block)]
    width: int = model.spec.width  # type: ignore[union-attr, assignment]
    like = next(model.parameters()).detach().new_zeros(width)
    owner = input_of(model, name)
    added = owner.positions is not None
    also: list[tuple[nn.Module, str]] = [
        (block.self_attention, which) for block in blocks for which in _turning(block)
    ]
    if stack.position_bias is not None:
        also.append((stack, "position_bias"))
    if added or also:
        place = f"{name}.positions"
        yield ModelPart(place, "positions", owner, "positions", added, like=like, also=tuple(also))
    if getattr(owner, "norm", None) is not None:
        yield ModelPart(f"{name}.embedding.norm", "norm", owner, "norm")
    for number, block in enumerate(blocks):
        for sublayer, attribute in _SUBLAYERS.items():
            if getattr(block, attribute) is not None:
                place = f"{name}.{number}.{sublayer}"
                yield from _of_sublayer(block, sublayer, place, like)
    if stack.final_norm is not None:
        yield ModelPart(f"{name}.norm", "norm", stack, "final_norm")


def _turning(block: Block) -> list[str]:
    """What of a block's attention depends on positions by itself."""
    return [
        name
        for name in ("rotary", "position_bias")
        if getattr(block.self_attention, name) is not None
    ]


def _of_sublayer(block: Block, name: str, place: str, like: Tensor) -> Iterator[ModelPart]:
    attribute = _SUBLAYERS[name]
    attention = getattr(block, attribute)
    if isinstance(attention, Attention):
        yield ModelPart(place, "sub-layer", attention, "output", True, like=like)
        for head in attention.kept.heads:
            yield ModelPart(f"{place}.head.{head}", "head", attention, "output", True, head, like)
        yield ModelPart(f"{place}.scale", "scale", attention, "scale")
        turning = tuple((attention, which) for which in _turning(block) if name == "self")
        if turning:
            yield ModelPart(f"{place}.positions", "positions", attention, "", also=turning)
    else:
        yield ModelPart(place, "sub-layer", block, attribute, True, like=like)
    yield ModelPart(f"{place}.residual", "residual", block, name)
    yield ModelPart(f"{place}.norm", "norm", block, f"{attribute}_norm")
