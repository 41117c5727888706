"""The config tree of a stack: blocks of sub-layers, like the tree of its modules, without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from heedful.config import Config, PositiveInt, Probability
from heedful.errors import ModelError
from heedful.nn.attention.masks import FAR, Mask
from heedful.nn.spec import (
    AttentionSpec,
    BiasSpec,
    FeedForwardSpec,
    NormPlacement,
    NormSpec,
    PartSpec,
)

_PLACEMENTS: Mapping[str, NormPlacement] = {"pre": "before", "post": "after", "none": "none"}
_NAMES = ("self_attention", "cross_attention", "feedforward")


class SubLayerSpec(Config):
    """A part with its norm, dropout and residual connection.

    The name is the prefix of the part's tensors (`blocks.0.self_attention.query.weight`, and
    `blocks.0.self_attention_norm.weight` of the norm) and of the addresses of its captures.
    """

    # No dots: names are parts of the paths of tensors and of captures.
    name: Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$")]
    part: PartSpec
    norm: NormSpec = NormSpec()
    norm_placement: NormPlacement = Field(
        "after",
        description="place of the norm: on the part's input (before, GPT-2), on the residual sum "
        "(after, Vaswani 2017), on the part's input and output (both, Gemma 2), on its output "
        "(output, OLMo 2), or none",
    )
    dropout: Probability = Field(0.0, description="dropout probability of the part's output")
    residual: bool = Field(True, description="add the sub-layer's input to the part's output")
    residual_scale: Annotated[float, Field(gt=0)] = Field(
        1.0, description="factor on the residual sum; sqrt(1/2) keeps the variance"
    )
    parallel: bool = Field(
        False,
        description="read the block's input instead of the stream after the sub-layers before "
        "(GPT-J, 2021)",
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
        # Names are keys of modules and tensors.
        names = [each.name for each in self.sublayers]
        if len(set(names)) < len(names):
            raise ValueError("two sub-layers have one name")
        return self

    @classmethod
    def of(
        cls,
        *,
        self_attention: PartSpec,
        feedforward: PartSpec | None,
        cross_attention: AttentionSpec | None = None,
        norm: NormSpec = NormSpec(),  # noqa: B008 (a frozen value)
        norm_placement: Literal["post", "pre", "none"] = "post",
        dropout: float = 0.0,
        residual: bool = True,
    ) -> Self:
        """Build the Transformer's block: self-attention, cross-attention if given, feed-forward.

        Args:
            self_attention: mixer of the input; another mixer's sub-layer is called `mixer`.
            feedforward: network; a channel mix's sub-layer is called `channel_mix`; None leaves
                the sub-layer out.
            cross_attention: attention over the encoder's output.
            norm: norm of every sub-layer.
            norm_placement: place of the norms: post (2017), pre or none.
            dropout: dropout probability of each sub-layer's output.
            residual: presence of residual connections.
        """
        parts: dict[str, PartSpec] = {self_attention.sublayer: self_attention}
        if cross_attention is not None:
            parts["cross_attention"] = cross_attention.model_copy(update={"over": "memory"})
        if feedforward is not None:
            parts[feedforward.kind] = feedforward  # a sub-layer is named after the kind of its part
        return cls.of_parts(
            parts, norm=norm, norm_placement=norm_placement, dropout=dropout, residual=residual
        )

    @classmethod
    def of_parts(
        cls,
        parts: Mapping[str, PartSpec],
        *,
        norm_placement: Literal["pre", "post", "none"] = "post",
        **common: Any,
    ) -> Self:
        """Build a block of sub-layers that differ in their parts only.

        Args:
            parts: part of each sub-layer by its name, in their order.
            norm_placement: place of the norms: post (2017), pre or none.
            **common: other settings of `SubLayerSpec`, for all of them.
        """
        common["norm_placement"] = _PLACEMENTS[norm_placement]
        named = ({"name": name, "part": part} for name, part in parts.items())
        return cls(sublayers=tuple(SubLayerSpec(**each, **common) for each in named))

    @classmethod
    def upgrade(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Turn the short form of a block, which names its three parts, into sub-layers."""
        if "sublayers" in values:
            return values
        values = dict(values)
        common = {name: values.pop(name) for name in ("norm", "dropout") if name in values}
        placement = values.pop("norm_placement", "post")
        sublayers = []
        for name in _NAMES:
            part = values.pop(name, None)
            # Only cross-attention was optional: the check of sub-layers refuses the others
            # without a part.
            if part is None and name == "cross_attention":
                continue
            sublayer = common | {"name": name}
            # An unknown word stays, and is refused by the check of the field.
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
        """Return the parts that let tokens of the input exchange information."""
        parts = [each.part for each in self.sublayers]
        # Cross-attention lets tokens see the source, not each other.
        return [part for part in parts if not part.is_network and not part.reads_memory]

    @property
    def self_attention(self) -> AttentionSpec:
        """The attention over the input.

        Raises:
            ModelError: when the block has another mixer.
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
        # `both` is missing, as it has no name among the placements of a whole block.
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
            changes: new part by the name of its sub-layer, None to leave the sub-layer out; any
                other setting of `SubLayerSpec` for all sub-layers.
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


def sees_no_later(mask: Mask) -> bool:
    """Return True if no query far from the beginning sees a key after it."""
    here = FAR // 2  # a prefix, which all queries see, ends before it
    return all(last <= here for _, last in mask.bounds(here, here))


class StackSpec(Config):
    """Blocks on top of each other: layer i is block i of the pattern, which repeats."""

    num_layers: PositiveInt
    pattern: Annotated[tuple[BlockSpec, ...], Field(min_length=1)]
    final_norm: NormSpec | None = None
    final_dropout: Probability = Field(0.0, description="dropout probability of the last states")
    shared_position_bias: BiasSpec | None = Field(
        None, description="position bias that all layers share (T5); none if unset"
    )

    @model_validator(mode="after")
    def _pattern_fits(self) -> Self:
        # Blocks that no layer uses would be checked and shown, but never built.
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
        """Build a stack of equal blocks; the arguments are the fields of the class."""
        return cls(
            num_layers=num_layers,
            pattern=(block,),
            final_norm=final_norm,
            final_dropout=final_dropout,
            shared_position_bias=shared_position_bias,
        )

    @classmethod
    def upgrade(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Turn the short form of equal blocks, a single `block`, into a pattern."""
        values = dict(values)
        block = values.pop("block", None)
        if not isinstance(block, Mapping):
            # A value that is not a table is left to the check of the field, which has a better
            # message.
            return values if block is None else values | {"pattern": block}
        return values | {"pattern": [BlockSpec.upgrade(block)]}

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
        # Pruning leaves different heads in layers whose blocks are otherwise equal.
        whole = [_with_all_heads(block) for block in self.pattern]
        if any(block != whole[0] for block in whole):
            raise ModelError("This needs layers that are alike; the model's differ")
        return whole[0]

    def sublayers(self) -> Iterator[SubLayerSpec]:
        """Yield the sub-layers of every block of the pattern, in their order."""
        for block in self.pattern:
            yield from block.sublayers

    def attentions(self) -> Iterator[AttentionSpec]:
        """Yield the parts of the pattern that are softmax attention, in their order."""
        for block in self.pattern:
            yield from block.attentions().values()

    def mixers(self) -> Iterator[PartSpec]:
        """Yield the parts that let tokens of the input exchange information, in their order."""
        for block in self.pattern:
            yield from block.mixers()

    @property
    def is_pruned(self) -> bool:
        """True if heads were pruned from any layer."""
        return any(each.kept_heads is not None for each in self.attentions())

    @property
    def has_self_attention(self) -> bool:
        """True if tokens of the input attend to each other in some layer."""
        return any(not each.reads_memory for each in self.attentions())

    @property
    def has_memory(self) -> bool:
        """True if a part reads an encoder's output."""
        return any(each.part.reads_memory for each in self.sublayers())

    @property
    def longest_text(self) -> int | None:
        """Most tokens of a text that every mixer can read; None without a limit."""
        lengths = (part.longest_text for part in self.mixers())
        return min((length for length in lengths if length is not None), default=None)

    @property
    def exact_text(self) -> int | None:
        """The only number of tokens of a text, special ones not counted; None for any."""
        lengths = (getattr(part, "exact_text", None) for part in self.mixers())
        return next((length for length in lengths if length is not None), None)

    def with_block(self, block: BlockSpec) -> Self:
        """Return a copy in which every layer is this block."""
        return self.model_copy(update={"pattern": (block,)})

    def with_attentions(self, change: Callable[[AttentionSpec], AttentionSpec]) -> Self:
        """Return a copy with changed attentions over the input; layers without one stay.

        Args:
            change: function from the old attention to the new one.
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
        """Refuse parts that depend on tokens which a decoder has not written yet.

        Raises:
            ValueError: with the part's reason.
        """
        for sublayer in self.sublayers():
            reason = sublayer.part.reads_ahead
            if reason is not None:
                raise ValueError(f"the decoder cannot have {sublayer.name}: {reason}")

    def check_remembers(self, memory: int) -> None:
        """Refuse parts that cannot use a memory of earlier tokens, or would see beyond it.

        Args:
            memory: number of earlier tokens whose states are kept.

        Raises:
            ValueError: when the stack has such a part.
        """
        for part in self.mixers():
            if part.kind != "attention" or part.global_tokens is not None:
                kind = "global_tokens" if part.kind == "attention" else part.kind
                raise ValueError(f"memory is read by plain attention, and a layer has {kind}")
            # Otherwise the context of a token would depend on where its segment begins.
            if part.mask.reach is None or part.mask.reach > memory:
                raise ValueError(
                    f"memory holds {memory} tokens, and the mask of a layer shows more: add a "
                    f"window of {memory + 1}"
                )

    def check_width(self, width: int) -> None:
        """Refuse parts that do not fit the model width.

        Raises:
            ValueError: when a part does not fit.
        """
        for sublayer in self.sublayers():
            sublayer.part.check_width(width)

    def check_causal(self, name: str) -> None:
        """Refuse mixers that see later tokens.

        Args:
            name: name of the stack, for the message.

        Raises:
            ValueError: when the stack has such a mixer.
        """
        for sublayer in self.sublayers():
            if sublayer.part.sees_later:
                raise ValueError(
                    f"{sublayer.name} of the {name} ({sublayer.part.kind}) sees tokens that "
                    "are not yet written: use a causal mixer"
                )

    @property
    def is_causal(self) -> bool:
        """True if no token far from the beginning sees later ones, as in a decoder."""
        parts = list(self.mixers())
        return all(part.reads_ahead is None and not part.sees_later for part in parts) and all(
            sees_no_later(part.mask) for part in self.attentions()
        )

    def check_positions(self, number: int) -> None:
        """Refuse masks that need more positions than there are.

        Args:
            number: number of positions.

        Raises:
            ValueError: when the stack has such a mask.
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
