"""From the dials of a run's settings to the complete specs of models other than the translator."""

from __future__ import annotations

from heedful.models.family import CausalLMSpec, EncoderSpec, HeadSpec
from heedful.models.spec import TranslatorShape
from heedful.nn.spec import AllOfSpec, SegmentSpec


def causal_lm_spec(shape: TranslatorShape, vocabulary: int, max_length: int) -> CausalLMSpec:
    """A decoder of `shape.decoder_layers` blocks that sees its own text only.

    Args:
        shape: the dials; those of an encoder are not used.
        vocabulary: number of pieces.
        max_length: tokens seen at once, as many positions as are learned.
    """
    whole = shape.model_copy(update={"max_length": max_length}).expand(vocabulary, vocabulary)
    block = whole.decoder.block
    attention = block.self_attention
    own_text = AllOfSpec(parts=(attention.mask, SegmentSpec()))
    block = block.model_copy(
        update={
            "cross_attention": None,
            "self_attention": attention.model_copy(update={"mask": own_text}),
        }
    )
    return CausalLMSpec(
        width=whole.width,
        vocabulary=vocabulary,
        embedding=whole.embedding,
        decoder=whole.decoder.model_copy(update={"block": block}),
        tied=shape.share_embeddings != "none",
        max_length=max_length,
    )


def encoder_spec(
    shape: TranslatorShape, vocabulary: int, max_length: int, heads: tuple[HeadSpec, ...]
) -> EncoderSpec:
    """An encoder of `shape.encoder_layers` blocks, without a pooler.

    Args:
        shape: the dials; those of a decoder are not used.
        vocabulary: number of pieces.
        max_length: tokens of the longest text, as many positions as are learned.
        heads: what is predicted.
    """
    whole = shape.model_copy(update={"max_length": max_length}).expand(vocabulary, vocabulary)
    return EncoderSpec(
        width=whole.width,
        vocabulary=vocabulary,
        embedding=whole.embedding,
        encoder=whole.encoder,
        heads=heads,
        max_length=max_length,
    )
