"""Parts of a model taken away for a while, to see what they are for.

A part is replaced by another object in its place, and the original is put back: so no number of the
model is ever touched, and what it computes afterwards is bit for bit what it computed before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.errors import ConfigError, ModelError
from heedful.inspect.model_parts import ModelPart, parts_matching
from heedful.models.block import Block
from heedful.nn.attention import Attention
from heedful.nn.embeddings import InputEmbedding

How = Literal["off", "zero", "mean"]

_HOWS = ("off", "zero", "mean")

Change = tuple[object, str, Any]
"""An object, the name of an attribute of it, and its new value."""


@contextmanager
def ablated(
    model: nn.Module,
    what: str | Iterable[str],
    how: How = "off",
    *,
    means: Mapping[str, Tensor] | None = None,
) -> Iterator[tuple[str, ...]]:
    """A context in which parts of a model do nothing; afterwards it is what it was.

    Off, a head, a sub-layer or a position encoding adds nothing, a residual connection is cut (only
    the sub-layer's output goes on), a norm hands on what it is given, and the scale of attention is
    1. The model is changed for everyone who uses it meanwhile. Contexts may be nested.

    Args:
        model: of any class.
        what: addresses, in which `*` stands for one part; `heedful.inspect.parts` lists a model's:
            `decoder.3.cross.head.2`, `decoder.3.cross`, `encoder.1.feedforward`,
            `encoder.1.self.residual`, `encoder.1.self.norm`, `encoder.1.self.scale`,
            `encoder.positions`.
        how: `off`; `zero`, the same for what is added to something, and refused for the rest;
            `mean`, what a head, a sub-layer or an added position encoding gives is replaced by its
            mean over a corpus.
        means: for `mean`, from `mean_outputs`.

    Yields:
        The addresses that are ablated.

    Raises:
        ModelError: when the model has no such part, naming near ones, or attention of one that was
            loaded to run is to lose a head or all of them: its weights cannot be read any more.
        ConfigError: when a part cannot be ablated so, or means are missing.
    """
    if how not in _HOWS:
        raise ConfigError(f"Nothing is ablated by {how!r}", remedy=f"Choose {', '.join(_HOWS)}")
    chosen = parts_matching(model, what)
    instead = {part.address: _instead(part, how, means) for part in chosen}
    modules = list(model.modules())
    plainly: list[Change] = [(each, "running", None) for each in modules if isinstance(each, Block)]
    plainly += [(m, "runs_natively", False) for m in modules if isinstance(m, InputEmbedding)]
    with swapped([*plainly, *_changes(chosen, instead)]):
        yield tuple(instead)


@contextmanager
def swapped(changes: Sequence[Change]) -> Iterator[None]:
    """A context in which attributes of objects have other values."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    try:
        for owner, name, value in changes:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in reversed(before):
            setattr(owner, name, value)


def _instead(part: ModelPart, how: How, means: Mapping[str, Tensor] | None) -> Tensor | None:
    """What a part gives in its place; None for nothing.

    Raises:
        ConfigError: when it cannot be.
    """
    if how == "off" or (how == "zero" and part.adds):
        return None
    if not part.adds:
        raise ConfigError(
            f"A part of the kind {part.kind} gives nothing that could be replaced by its {how}",
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


def _changes(parts: Collection[ModelPart], instead: Mapping[str, Tensor | None]) -> list[Change]:
    changes: list[Change] = []
    heads: dict[Attention, dict[int, Tensor | None]] = {}
    whole: dict[Attention, Tensor] = {}
    for part in parts:
        value = instead[part.address]
        if isinstance(part.owner, Attention) and part.kind in ("head", "sub-layer"):
            _check_readable(part.owner, part.address)
        if isinstance(part.owner, Attention) and part.kind == "head":
            assert part.head is not None
            heads.setdefault(part.owner, {})[part.head] = value
        elif isinstance(part.owner, Attention) and part.kind == "sub-layer":
            whole[part.owner] = _vector(part, value)
        else:
            changes += _change(part, value)
    for attention in {**heads, **whole}:
        if attention in whole:
            weight = torch.zeros_like(attention.output.weight)
            output = _Map(weight, whole[attention])
        else:
            output = _without(attention, heads[attention])
        changes.append((attention, "output", output))
    # One block may lose several of its residual connections.
    cuts: dict[Block, frozenset[str]] = {}
    for part in parts:
        if part.kind == "residual" and isinstance(part.owner, Block):
            cuts[part.owner] = cuts.get(part.owner, part.owner.cut) | {part.name}
    return [*changes, *((block, "cut", cut) for block, cut in cuts.items())]


def _check_readable(attention: Attention, address: str) -> None:
    if not isinstance(attention.output, nn.Linear | _Map):
        raise ModelError(
            "The model was loaded to run, with weights laid out for the processor: attention can "
            "no longer be taken apart",
            where=address,
            remedy="Load it by heedful.models.checkpoint.load_model, which leaves weights alone",
        )


def _change(part: ModelPart, value: Tensor | None) -> list[Change]:
    """Of a part that shares its place with no other."""
    if part.kind == "residual":
        return []
    if part.kind == "norm":
        return [(part.owner, part.name, nn.Identity())]
    if part.kind == "scale":
        return [(part.owner, "scale", 1.0)]
    if part.kind == "sub-layer":
        return [(part.owner, part.name, Constant(_vector(part, value)))]
    assert part.kind == "positions"
    added = [(part.owner, part.name, Constant(_vector(part, value)))] if part.adds else []
    return [*added, *((owner, name, None) for owner, name in part.also)]


def _vector(part: ModelPart, value: Tensor | None) -> Tensor:
    assert part.like is not None
    return part.like if value is None else value.to(part.like)


class Constant(nn.Module):
    """Gives the same vector [D] at every place of what it is given."""

    def __init__(self, vector: Tensor) -> None:
        super().__init__()
        self.register_buffer("vector", vector.detach(), persistent=False)
        self.vector: Tensor

    def forward(self, x: Tensor, *_: object) -> Tensor:
        """States [..., D], or positions [...] int64, to [..., D]."""
        places = x.shape[:-1] if x.is_floating_point() else x.shape
        return self.vector.expand(*places, -1)


class _Map(nn.Module):
    """A linear map with given numbers; made without drawing random ones."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)
        self.weight: Tensor
        self.bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


def _without(attention: Attention, heads: Mapping[int, Tensor | None]) -> _Map:
    """The output projection, with constants in the place of heads: it is blind to them."""
    output = attention.output
    weight = output.weight.detach().clone()
    bias = None if output.bias is None else output.bias.detach().clone()
    for head, mean in heads.items():
        first = attention.kept.heads.index(head) * attention.head_width
        columns = slice(first, first + attention.head_width)
        if mean is not None:
            given = weight[:, columns] @ mean.to(weight)
            bias = given if bias is None else bias + given
        weight[:, columns] = 0.0
    return _Map(weight, bias)
