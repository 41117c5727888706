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
    from heedful.models.shape import ConvolutionShape, RecurrentShape, TranslatorShape
    from heedful.nn.mixer_spec import Direction
    from heedful.nn.spec import PartSpec

_HALF = math.sqrt(0.5)
"""Factor on residual sums of convolutions, which keeps their variance (Gehring 2017)."""


def encoder_stack(shape: TranslatorShape) -> StackSpec | None:
    """Return the encoder that the options describe; None for one of attention blocks.

    Args:
        shape: the options.
    """
    if shape.recurrent is not None:
        direction = shape.recurrent.direction
        return _recurrent_stack(shape, shape.recurrent, direction, shape.encoder_layers)
    if shape.convolution is not None:
        block = _convolution_block(shape, shape.convolution, causal=False, memory=False)
        return StackSpec.of(num_layers=shape.encoder_layers, block=block)
    return None


def decoder_stack(shape: TranslatorShape, *, memory: bool) -> StackSpec | None:
    """Return the decoder that the options describe; None for one of attention blocks.

    Args:
        shape: the options.
        memory: whether it reads an encoder's output, as a translator does.
    """
    recurrent = shape.recurrent
    if recurrent is not None and memory:
        block = BlockSpec(sublayers=(_plain("cross_attention", _decoder(shape, recurrent), shape),))
        return StackSpec.of(num_layers=1, block=block)
    if recurrent is not None:
        return _recurrent_stack(shape, recurrent, "forward", shape.decoder_layers)
    if shape.convolution is not None:
        block = _convolution_block(shape, shape.convolution, causal=True, memory=memory)
        return StackSpec.of(num_layers=shape.decoder_layers, block=block)
    return None


def recurrent_options(encoder: StackSpec | None, decoder: StackSpec | None) -> dict[str, Any]:
    """Return the options of `RecurrentShape` that stacks were made with, as far as they tell.

    Args:
        encoder: of a model; None where it has none.
        decoder: of the same model; None where it has none.
    """
    options: dict[str, Any] = {}
    for stack, block in ((s, b) for s in (encoder, decoder) if s is not None for b in s.pattern):
        for sublayer in block.sublayers:
            part = sublayer.part
            if part.kind == "recurrent":
                options |= {"cell": part.cell} | _residual(stack, sublayer)
                if stack is encoder:
                    options["direction"] = part.direction
            elif part.kind == "recurrent_decoder":
                attention = part.attention
                told: dict[str, Any] = {
                    "cell": part.cell,
                    "direction": part.summary,
                    "attention": "none" if attention is None else attention.score,
                    "feeding": part.feeding,
                    "readout": part.readout,
                    "residual": part.residual,
                }
                told |= {
                    option: getattr(
                        attention, field, ScoreAttentionSpec.model_fields[field].default
                    )
                    for option, field in _OF_ATTENTION.items()
                }
                options |= told
    return options


_OF_ATTENTION = {"window": "window", "key_width": "width", "scale": "scale"}
"""Options of `RecurrentShape` and the fields of `ScoreAttentionSpec` that they set."""


def _residual(stack: StackSpec, sublayer: SubLayerSpec) -> dict[str, bool]:
    """Return the option of residual connections; a single layer tells nothing."""
    last = stack.pattern[-1].sublayers[0]
    return {"residual": last.residual} if stack.num_layers > 1 and sublayer is last else {}


def _recurrent_stack(
    shape: TranslatorShape, recurrent: RecurrentShape, direction: Direction, num_layers: int
) -> StackSpec:
    part = RecurrentSpec(cell=recurrent.cell, direction=direction)
    first = BlockSpec(sublayers=(_plain("recurrent", part, shape),))
    if not recurrent.residual or num_layers == 1:
        return StackSpec.of(num_layers=num_layers, block=first)
    others = BlockSpec(sublayers=(_plain("recurrent", part, shape, residual=True),))
    return StackSpec(num_layers=num_layers, pattern=(first, *[others] * (num_layers - 1)))


def _decoder(shape: TranslatorShape, recurrent: RecurrentShape) -> RecurrentDecoderSpec:
    options = recurrent.plain()
    summary = {"summary": options.pop("direction")}
    score = {"score": options.pop("attention")}
    score |= {field: options.pop(option, None) for option, field in _OF_ATTENTION.items()}
    attention = None
    if score["score"] != "none":
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
        attention = ScoreAttentionSpec(
            score="dot", embeddings=True, dropout=shape.attention_dropout
        )
        sublayers.append(_scaled("cross_attention", attention))
    return BlockSpec(sublayers=tuple(sublayers))


def _plain(
    name: str, part: PartSpec, shape: TranslatorShape, *, residual: bool = False
) -> SubLayerSpec:
    """Return a sub-layer without a norm, whose output takes the stream's place or is added."""
    return SubLayerSpec(
        name=name, part=part, norm_placement="none", dropout=shape.dropout, residual=residual
    )


def _scaled(name: str, part: PartSpec) -> SubLayerSpec:
    """Return a sub-layer without a norm, whose sums keep their variance."""
    return SubLayerSpec(name=name, part=part, norm_placement="none", residual_scale=_HALF)
