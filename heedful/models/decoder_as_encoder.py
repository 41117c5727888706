"""A causal language model that reads texts for heads, as an encoder whose mask is causal.

Radford 2018 fine-tunes GPT so: the state of the last token, which alone has seen the whole text, is
the input of a linear classifier. The stack stays as it is; only names of tensors change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from heedful.models.build import build_model, canonical_weights, load_weights
from heedful.models.encoder_spec import EncoderSpec
from heedful.text.registered_tokenizer import RegisteredTokenizer
from heedful.text.tokenizer import Tokenizer
from heedful.text.tokenizer_pair import TokenizerPair

if TYPE_CHECKING:
    from heedful.models.build import AnyModel

_OF_OUTPUT = ("output_projection.", "output_bias")
"""Beginnings of the names of tensors that only predict the next token."""


def as_encoder(spec: Any) -> Any:
    """Return the spec of an encoder without heads with the stack of a causal language model.

    Args:
        spec: spec of any model; other kinds are returned as they are.
    """
    if spec.kind != "causal_lm":
        return spec
    return EncoderSpec(
        width=spec.width,
        vocabulary=spec.vocabulary,
        embedding=spec.embedding,
        encoder=spec.decoder,
        max_length=spec.max_length,
    )


def encoder_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the weights of a causal language model to those of `as_encoder`.

    Args:
        weights: tensors by canonical name; those of an encoder keep their names.
    """
    return {
        f"encoder.{rest}" if (rest := name.removeprefix("decoder.")) != name else name: tensor
        for name, tensor in weights.items()
        if not name.startswith(_OF_OUTPUT)
    }


def framing(tokenizers: TokenizerPair) -> TokenizerPair:
    """Return the tokenizer of a causal language model with begin and end around a text, twice.

    An imported tokenizer frames texts as it was published, and one of fields frames none.
    """
    if not isinstance(tokenizers.source, Tokenizer | RegisteredTokenizer):
        return tokenizers
    tokenizer = tokenizers.source.for_encoder()
    return TokenizerPair(tokenizer, tokenizer)


def load_reader(
    model: AnyModel, tokenizers: TokenizerPair | None
) -> tuple[AnyModel, TokenizerPair | None]:
    """Return a loaded model as an encoder, where it is a causal language model of texts.

    Args:
        model: model of any kind.
        tokenizers: its tokenizers; None for a model of images.
    """
    if model.spec.kind != "causal_lm" or tokenizers is None:
        return model, tokenizers
    encoder = build_model(as_encoder(model.spec))
    load_weights(encoder, encoder_weights(canonical_weights(model)), where="decoder")
    return encoder.eval(), framing(tokenizers)
