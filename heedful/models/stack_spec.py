"""The config tree of a stack: blocks of sub-layers, the same tree as its modules. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from heedful.config import Config, PositiveInt, Probability
from heedful.errors import ConfigError, ModelError
from heedful.nn.mixer_spec import ChannelMixSpec
from heedful.nn.spec import (
    AttentionSpec,
    BiasSpec,
    FeedForwardSpec,
    NormPlacement,
    NormSpec,
    PartSpec,
)

_PLACEMENTS: Mapping[str, NormPlacement] = {"pre": "before", "post": "after", "none": "none"}
_NETWORKS = ("feedforward", "channel_mix")
_NAMES = ("self_attention", "cross_attention", "feedforward")


class SubLayerSpec(Config):
    """A part with its norm, dropout and residual connection.

    The name is that of the part's tensors (`blocks.0.self_attention.query.weight`; the norm's are
    under `blocks.0.self_attention_norm`), and says where captures are addressed.
    """

    name: Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$")]
    part: PartSpec
    norm: NormSpec = NormSpec()
    norm_placement: NormPlacement = Field(
        "after",
        description="before: of what the part reads (GPT-2); after: of the residual sum (2017); "
        "both: of what the part reads and of its output (Gemma 2); none",
    )
    dropout: Probability = Field(0.0, description="on the part's output, before the residual sum")
    residual: bool = Field(True, description="add the part's output to what stood before it")
    residual_scale: Annotated[float, Field(gt=0)] = Field(
        1.0, description="factor on the residual sum; the root of 1/2 keeps its variance"
    )

    @model_validator(mode="after")
    def _scales_a_sum(self) -> Self:
        if self.residual_scale != 1.0 and not self.residual:
            raise ValueError(f"{self.name}: residual_scale is a factor on a sum: residual = true")
        return self


class BlockSpec(Config):
    """One layer: sub-layers one after the other."""

    sublayers: Annotated[tuple[SubLayerSpec, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [each.name for each in self.sublayers]
        if len(set(names)) < len(names):
            raise ValueError("two sub-layers have one name")
        return self

    @classmethod
    def of(
        cls,
        *,
        self_attention: PartSpec,
        feedforward: FeedForwardSpec | ChannelMixSpec | None,
        cross_attention: AttentionSpec | None = None,
        norm: NormSpec = NormSpec(),  # noqa: B008 (a frozen value)
        norm_placement: Literal["post", "pre", "none"] = "post",
        dropout: float = 0.0,
        residual: bool = True,
    ) -> Self:
        """Build the Transformer's block: self-attention, cross-attention if given, feed-forward.

        Args:
            self_attention: over the input; the sub-layer of another mixer is called `mixer`.
            feedforward: the network; the sub-layer of a channel mix is called `channel_mix`; None
                leaves it out.
            cross_attention: over the encoder's output.
            norm: of every sub-layer.
            norm_placement: after the residual sum (2017), before each sub-layer, or nowhere.
            dropout: on each sub-layer's output.
            residual: add each sub-layer's output to its input.
        """
        if cross_attention is not None:
            cross_attention = cross_attention.model_copy(update={"over": "memory"})
        parts = dict(zip(_NAMES, (self_attention, cross_attention, feedforward), strict=True))
        if self_attention.kind != "attention":
            parts = {"mixer": parts.pop("self_attention"), **parts}
        if feedforward is not None and feedforward.kind != "feedforward":
            parts[feedforward.kind] = parts.pop("feedforward")
        return cls(
            sublayers=tuple(
                SubLayerSpec(
                    name=name,
                    part=part,
                    norm=norm,
                    norm_placement=_PLACEMENTS[norm_placement],
                    dropout=dropout,
                    residual=residual,
                )
                for name, part in parts.items()
                if part is not None
            )
        )

    @classmethod
    def upgrade(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Turn a block of schema version 1, which named its three parts, into sub-layers."""
        if "sublayers" in values:
            return values
        values = dict(values)
        common = {name: values.pop(name) for name in ("norm", "dropout") if name in values}
        placement = values.pop("norm_placement", "post")
        sublayers = []
        for name in _NAMES:
            part = values.pop(name, None)
            if part is None and name == "cross_attention":
                continue
            sublayer = common | {"name": name}
            sublayer["norm_placement"] = _PLACEMENTS.get(placement, placement)
            if isinstance(part, Mapping):
                kind = "feedforward" if name == "feedforward" else "attention"
                over = {"over": "memory"} if name == "cross_attention" else {}
                part = {"kind": kind} | over | dict(part)
            sublayers.append(sublayer if part is None else sublayer | {"part": part})
        return values | {"sublayers": sublayers}

    def part(self, name: str) -> PartSpec | None:
        """Return the part of the sub-layer of this name; None where there is none."""
        return next((each.part for each in self.sublayers if each.name == name), None)

    def attentions(self) -> dict[str, AttentionSpec]:
        """Return the parts that are softmax attention, by the name of their sub-layer."""
        parts = {each.name: each.part for each in self.sublayers}
        return {name: part for name, part in parts.items() if part.kind == "attention"}

    def mixers(self) -> list[PartSpec]:
        """Return the parts through which tokens of the input exchange information."""
        parts = [each.part for each in self.sublayers if each.part.kind not in _NETWORKS]
        return [part for part in parts if getattr(part, "over", "input") == "input"]

    @property
    def self_attention(self) -> AttentionSpec:
        """The attention over the input.

        Raises:
            ModelError: when tokens exchange information by something else.
        """
        attention: AttentionSpec = self._of_kind("self_attention", self.attentions())
        return attention

    @property
    def cross_attention(self) -> AttentionSpec | None:
        """The attention over the encoder's output, if there is one."""
        return self.attentions().get("cross_attention")

    @property
    def feedforward(self) -> FeedForwardSpec:
        """The position-wise network.

        Raises:
            ModelError: when the block has none.
        """
        parts = [(each.name, each.part) for each in self.sublayers]
        networks = {name: part for name, part in parts if part.kind == "feedforward"}
        network: FeedForwardSpec = self._of_kind("feedforward", networks)
        return network

    @property
    def norm(self) -> NormSpec:
        """The norm of every sub-layer."""
        norm: NormSpec = self._common("norm")
        return norm

    @property
    def norm_placement(self) -> Literal["post", "pre", "none"]:
        """The place of every sub-layer's norm: after the sum, before the part, or nowhere."""
        placement: NormPlacement = self._common("norm_placement")
        names: dict[str, Literal["post", "pre", "none"]] = {
            "before": "pre",
            "after": "post",
            "none": "none",
        }
        if placement not in names:
            raise ModelError(f"Norms stand {placement!r}, neither before nor after each sub-layer")
        return names[placement]

    @property
    def residual(self) -> bool:
        """True if every sub-layer's output is added to its input."""
        residual: bool = self._common("residual")
        return residual

    @property
    def dropout(self) -> float:
        """The dropout of every sub-layer's output."""
        dropout: float = self._common("dropout")
        return dropout

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other parts or settings.

        Args:
            changes: a part by the name of its sub-layer, None to leave that sub-layer out; any
                other setting of `SubLayerSpec`, for all sub-layers.
        """
        names = {each.name for each in self.sublayers}
        settings = {key: value for key, value in changes.items() if key not in names}
        sublayers = []
        for each in self.sublayers:
            part = changes.get(each.name, each.part)
            if part is not None:
                sublayers.append(each.model_copy(update={"part": part} | settings))
        return self.model_copy(update={"sublayers": tuple(sublayers)})

    def _of_kind(self, name: str, parts: Mapping[str, Any]) -> Any:
        if name not in parts:
            kinds = ", ".join(f"{each.name} ({each.part.kind})" for each in self.sublayers)
            raise ModelError(f"This needs blocks with {name}; the model's have {kinds}")
        return parts[name]

    def _common(self, setting: str) -> Any:
        values = [getattr(each, setting) for each in self.sublayers]
        if any(value != values[0] for value in values):
            raise ModelError(f"This needs blocks whose sub-layers have the same {setting}")
        return values[0]


class StackSpec(Config):
    """Blocks on top of each other: layer i is block i of the pattern, which repeats."""

    num_layers: PositiveInt
    pattern: Annotated[tuple[BlockSpec, ...], Field(min_length=1)]
    final_norm: NormSpec | None = None
    final_dropout: Probability = Field(0.0, description="on the last states, after that norm")
    shared_position_bias: BiasSpec | None = Field(
        None, description="a position bias that all layers share (T5)"
    )

    @model_validator(mode="after")
    def _pattern_fits(self) -> Self:
        if len(self.pattern) > self.num_layers:
            raise ValueError(
                f"pattern has {len(self.pattern)} blocks, num_layers is {self.num_layers}"
            )
        if self.shared_position_bias is not None and not self.has_self_attention:
            raise ValueError(
                "shared_position_bias needs a layer of attention, to whose scores it is added"
            )
        return self

    @classmethod
    def of(
        cls,
        *,
        num_layers: int,
        block: BlockSpec,
        final_norm: NormSpec | None = None,
        final_dropout: float = 0.0,
        shared_position_bias: BiasSpec | None = None,
    ) -> Self:
        """Build a stack of equal blocks; arguments as the fields."""
        return cls(
            num_layers=num_layers,
            pattern=(block,),
            final_norm=final_norm,
            final_dropout=final_dropout,
            shared_position_bias=shared_position_bias,
        )

    @classmethod
    def upgrade(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Turn a stack of schema version 1, of equal blocks and `kept_heads`, into a pattern."""
        values = dict(values)
        kept = values.pop("kept_heads", None)
        block = values.pop("block", None)
        if not isinstance(block, Mapping):
            return values if block is None else values | {"pattern": block}
        upgraded = BlockSpec.upgrade(block)
        if kept is None:
            return values | {"pattern": [upgraded]}
        return values | {"pattern": _prune(upgraded, values.get("num_layers"), kept)}

    @property
    def blocks(self) -> tuple[BlockSpec, ...]:
        """The block of each layer."""
        return tuple(self.pattern[i % len(self.pattern)] for i in range(self.num_layers))

    @property
    def block(self) -> BlockSpec:
        """The block of every layer, with all heads where some were pruned.

        Raises:
            ModelError: when layers differ in more than that.
        """
        whole = [_with_all_heads(block) for block in self.pattern]
        if any(block != whole[0] for block in whole):
            raise ModelError("This needs layers that are alike; the model's differ")
        return whole[0]

    @property
    def is_pruned(self) -> bool:
        """True if some layer lost heads."""
        attentions = (each for block in self.pattern for each in block.attentions().values())
        return any(each.kept_heads is not None for each in attentions)

    @property
    def has_self_attention(self) -> bool:
        """True if tokens of the input attend to each other in some layer."""
        parts = (part for block in self.pattern for part in block.mixers())
        return any(part.kind == "attention" for part in parts)

    @property
    def has_memory(self) -> bool:
        """True if a part reads an encoder's output."""
        parts = (each.part for block in self.pattern for each in block.sublayers)
        return any(getattr(part, "over", None) == "memory" for part in parts)

    @property
    def longest_text(self) -> int | None:
        """Tokens of the longest text that every mixer can read; None if any length is fine."""
        parts = (part for block in self.pattern for part in block.mixers())
        lengths = (getattr(part, "longest_text", None) for part in parts)
        return min((length for length in lengths if length is not None), default=None)

    def with_block(self, block: BlockSpec) -> Self:
        """Return a copy all of whose layers are this block."""
        return self.model_copy(update={"pattern": (block,)})

    def with_attentions(self, change: Callable[[AttentionSpec], AttentionSpec]) -> Self:
        """Return a copy with changed attentions over the input; layers without one stay.

        Args:
            change: makes the new attention from the old one.
        """
        return self.model_copy(
            update={
                "pattern": tuple(
                    block.replace(
                        **{
                            name: change(part)
                            for name, part in block.attentions().items()
                            if part.over == "input"
                        }
                    )
                    for block in self.pattern
                )
            }
        )

    def check_writes(self) -> None:
        """Refuse parts that read tokens which a decoder has not written yet.

        Raises:
            ValueError: with the part's reason.
        """
        for block in self.pattern:
            for sublayer in block.sublayers:
                reason = getattr(sublayer.part, "reads_ahead", None)
                if reason is not None:
                    raise ValueError(f"the decoder cannot have {sublayer.name}: {reason}")

    def check_remembers(self, memory: int) -> None:
        """Refuse parts that do not read the states of tokens before a segment, or want more.

        Args:
            memory: tokens whose states are kept.

        Raises:
            ValueError: when there is one.
        """
        for block in self.pattern:
            for part in block.mixers():
                if part.kind != "attention" or part.global_tokens is not None:
                    kind = "global_tokens" if part.kind == "attention" else part.kind
                    raise ValueError(f"memory is read by plain attention, and a layer has {kind}")
                if part.mask.reach is None or part.mask.reach > memory:
                    raise ValueError(
                        f"memory holds {memory} tokens, and the mask of a layer shows more: add a "
                        f"window of {memory + 1}"
                    )

    def check_width(self, width: int) -> None:
        """Refuse parts that do not fit the model width.

        Raises:
            ValueError: when one does not.
        """
        for block in self.pattern:
            for sublayer in block.sublayers:
                sublayer.part.check_width(width)

    def check_causal(self, name: str) -> None:
        """Refuse mixers that can only see a whole text.

        Args:
            name: of the stack, for the message.

        Raises:
            ValueError: when there is one.
        """
        for block in self.pattern:
            for sublayer in block.sublayers:
                if getattr(sublayer.part, "causal", True) is False:
                    raise ValueError(
                        f"{sublayer.name} of the {name} ({sublayer.part.kind}) sees tokens that "
                        "are not yet written: use a causal mixer"
                    )

    def check_positions(self, number: int) -> None:
        """Refuse masks that need more positions than there are.

        Args:
            number: of positions.

        Raises:
            ValueError: when one does.
        """
        for block in self.pattern:
            for name, attention in block.attentions().items():
                if (span := attention.mask.span) > number:
                    raise ValueError(
                        f"the mask of {name} reaches over {span} positions, and a text has at "
                        f"most {number}: make it smaller, or leave it out"
                    )


def _with_all_heads(block: BlockSpec) -> BlockSpec:
    for name, attention in block.attentions().items():
        if attention.kept_heads is not None:
            block = block.replace(**{name: attention.model_copy(update={"kept_heads": None})})
    return block


def _prune(block: Mapping[str, Any], num_layers: Any, kept: Any) -> list[Mapping[str, Any]]:
    """Return a block for each layer, with the heads that `kept_heads` of version 1 left in it."""
    if not isinstance(kept, list) or len(kept) != num_layers:
        number = len(kept) if isinstance(kept, list) else kept
        raise ConfigError(f"kept_heads has {number} layers, num_layers is {num_layers}")
    names = {each["name"] for each in block["sublayers"]}
    for number, layer in enumerate(kept):
        if not isinstance(layer, Mapping) or not set(layer) <= names:
            raise ConfigError(f"kept_heads.{number}: there is no such attention")
    return [
        {**block, "sublayers": [_with_heads(each, layer) for each in block["sublayers"]]}
        for layer in kept
    ]


def _with_heads(sublayer: Mapping[str, Any], layer: Mapping[str, Any]) -> Mapping[str, Any]:
    heads = layer.get(sublayer["name"])
    if heads is None:
        return sublayer
    return {**sublayer, "part": {**sublayer["part"], "kept_heads": heads}}
