"""Stacks of recurrent layers and of gated convolutions, from the options of a run's settings."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from heedful.models.stack_spec import BlockSpec, StackSpec, SubLayerSpec
from heedful.nn.mixer_spec import (
    ConvolutionSpec,
    RecurrentDecoderSpec,
    RecurrentSpec,
    ScoreAttentionSpec,
)

if TYPE_CHECKING:
    from heedful.config import Direction
    from heedful.models.shape import ConvolutionShape, RecurrentShape, TranslatorShape
    from heedful.nn.spec import PartSpec

_HALF = math.sqrt(0.5)
"""Factor on residual sums of convolutions, which keeps their variance (Gehring 2017, 3.5)."""


def encoder_stack(shape: TranslatorShape) -> StackSpec | None:
    """Return an encoder of recurrent layers or convolutions; None where a shape has neither.

    Args:
        shape: options of the architecture.
    """
    if shape.recurrent is not None:
        direction = shape.recurrent.direction
        return _recurrent_stack(shape, shape.recurrent, direction, shape.encoder_layers)
    if shape.convolution is not None:
        block = _convolution_block(shape, shape.convolution, causal=False, memory=False)
        return StackSpec.of(num_layers=shape.encoder_layers, block=block)
    return None


def decoder_stack(shape: TranslatorShape, *, memory: bool) -> StackSpec | None:
    """Return a decoder of recurrent layers or convolutions; None where a shape has neither.

    Args:
        shape: options of the architecture.
        memory: presence of an encoder, to whose output the decoder attends.
    """
    recurrent = shape.recurrent
    if recurrent is not None and memory:
        # All layers are one part: input feeding (Luong 2015) needs the output of the last layer
        # before the first begins.
        block = BlockSpec(sublayers=(_plain("cross_attention", _decoder(shape, recurrent), shape),))
        return StackSpec.of(num_layers=1, block=block)
    if recurrent is not None:
        # A language model has no later tokens to read backward from.
        return _recurrent_stack(shape, recurrent, "forward", shape.decoder_layers)
    if shape.convolution is not None:
        block = _convolution_block(shape, shape.convolution, causal=True, memory=memory)
        return StackSpec.of(num_layers=shape.decoder_layers, block=block)
    return None


def recurrent_options(encoder: StackSpec | None, decoder: StackSpec | None) -> dict[str, Any]:
    """Return the options of `RecurrentShape` that can be inferred from the stacks of a model.

    Args:
        encoder: encoder of the model, if any.
        decoder: decoder of the same model, if any.
    """
    options: dict[str, Any] = {}
    for stack, block in ((s, b) for s in (encoder, decoder) if s is not None for b in s.pattern):
        for sublayer in block.sublayers:
            part = sublayer.part
            if part.kind == "recurrent":
                options |= {"cell": part.cell} | _residual(stack, sublayer)
                # A decoder always runs forward, whatever the option was.
                if stack is encoder:
                    options["direction"] = part.direction
            elif part.kind == "recurrent_decoder":
                attention = part.attention
                decoder_options: dict[str, Any] = {
                    "cell": part.cell,
                    "direction": part.summary,
                    "attention": "none" if attention is None else attention.score,
                    "feeding": part.feeding,
                    "readout": part.readout,
                    "residual": part.residual,
                }
                decoder_options |= {
                    # Without attention the options of attention have their defaults, so no flag
                    # contradicts them.
                    option: getattr(
                        attention, field, ScoreAttentionSpec.model_fields[field].default
                    )
                    for option, field in _OF_ATTENTION.items()
                }
                options |= decoder_options
    return options


_OF_ATTENTION = {"window": "window", "key_width": "width", "scale": "scale"}
"""Options of `RecurrentShape` and the fields of `ScoreAttentionSpec` that they set."""


def _residual(stack: StackSpec, sublayer: SubLayerSpec) -> dict[str, bool]:
    """Return the option of residual connections; empty where a stack has a single layer."""
    # The first layer never has one, so only a later one shows the option.
    last = stack.pattern[-1].sublayers[0]
    return {"residual": last.residual} if stack.num_layers > 1 and sublayer is last else {}


def _recurrent_stack(
    shape: TranslatorShape, recurrent: RecurrentShape, direction: Direction, num_layers: int
) -> StackSpec:
    part = RecurrentSpec(cell=recurrent.cell, direction=direction)
    # The first layer adds nothing: its input is embeddings, not states of a layer.
    first = BlockSpec(sublayers=(_plain("recurrent", part, shape),))
    if not recurrent.residual or num_layers == 1:
        return StackSpec.of(num_layers=num_layers, block=first)
    others = BlockSpec(sublayers=(_plain("recurrent", part, shape, residual=True),))
    return StackSpec(num_layers=num_layers, pattern=(first, *[others] * (num_layers - 1)))


def _decoder(shape: TranslatorShape, recurrent: RecurrentShape) -> RecurrentDecoderSpec:
    options = recurrent.plain()
    # The decoder starts from the last state of the encoder in the directions that it has.
    summary = {"summary": options.pop("direction")}
    score = {"score": options.pop("attention")}
    score |= {field: options.pop(option, None) for option, field in _OF_ATTENTION.items()}
    attention = None
    if score["score"] != "none":
        # The decoder is a single sub-layer, whose attention has the dropout inside.
        attention = score | {"dropout": shape.attention_dropout}
    sizes = {"num_layers": shape.decoder_layers, "dropout": shape.dropout}
    values = options | sizes | summary | {"attention": attention}
    return RecurrentDecoderSpec.parse(values, where="model.recurrent")


def _convolution_block(
    shape: TranslatorShape, convolution: ConvolutionShape, *, causal: bool, memory: bool
) -> BlockSpec:
    values = convolution.plain() | {"causal": causal, "dropout": shape.dropout}
    part = ConvolutionSpec.parse(values, where="model.convolution")
    sublayers = [_scaled("convolution", part)]
    if memory:
        # Gehring 2017, section 3.3: token embeddings are added to queries and to values.
        attention = ScoreAttentionSpec(
            score="dot", embeddings=True, dropout=shape.attention_dropout
        )
        sublayers.append(_scaled("cross_attention", attention))
    return BlockSpec(sublayers=tuple(sublayers))


def _plain(
    name: str, part: PartSpec, shape: TranslatorShape, *, residual: bool = False
) -> SubLayerSpec:
    """Return a sub-layer without a norm, whose output replaces the stream or is added to it."""
    return SubLayerSpec(
        name=name, part=part, norm_placement="none", dropout=shape.dropout, residual=residual
    )


def _scaled(name: str, part: PartSpec) -> SubLayerSpec:
    """Return a sub-layer without a norm, whose residual sums are scaled to keep their variance."""
    return SubLayerSpec(name=name, part=part, norm_placement="none", residual_scale=_HALF)
