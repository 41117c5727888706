"""One text through a model, tensor by tensor, from its pieces to the token it predicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from heedful.errors import DataError, ModelError
from heedful.inspect.attention_maps import choose
from heedful.inspect.decoding_steps import NextToken, next_token
from heedful.inspect.readings import ModelInput, StackTokens, read, stack_positions, tensors
from heedful.inspect.subject import Subject, array, capture, inference, stack_of, sublayers
from heedful.pipelines.text_encoding import MASK


@dataclass(frozen=True, eq=False)
class LastCrossAttention:
    """The attention of the last decoder token to the encoder's, in the last block that has any.

    Args:
        layer: number of the block.
        weights: [H, Lk].
    """

    layer: int
    weights: np.ndarray


@dataclass(frozen=True, eq=False)
class HiddenToken:
    """The predictions of a masked language model for the first token that a text hides.

    Args:
        reading: the text.
        row: index of the hidden token.
        logits: [V] scores before the softmax.
        scores: [V] log-probabilities.
        names: [V] pieces for display.
    """

    reading: ModelInput
    row: int
    logits: np.ndarray
    scores: np.ndarray
    names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Walkthrough:
    """The tensors of a pass that lead from a text to the token that the model predicts.

    Those of one block are of the stack that reads the text: the encoder, or a language model's
    decoder.

    Args:
        stack: `encoder` or `decoder`.
        tokens: of that stack.
        token_vectors: [L, D], scaled; None where a norm follows, so that they cannot be told apart.
        position_vectors: [L, D]; None for a model that adds none to its embeddings.
        embedding: [L, D], the input of the first block.
        layer: number of the block.
        layers: number of blocks.
        can_open: numbers of the blocks that can be opened.
        head: number of the head.
        heads: number of heads.
        query: [L, E] of the head, after rotation; `key` and `value` alike.
        key: [L, E].
        value: [L, E].
        factor: the number that products of queries and keys are multiplied with.
        scores: [L, L], the input of softmax; −∞ where hidden.
        weights: [L, L].
        context: [L, E], the mixed values.
        attention_output: [L, D], the sum over the heads, projected.
        inner: [L, F] of the feed-forward network; None where experts take its place.
        feedforward_output: [L, D].
        output: [L, D], the stream after the block.
        cross: None for a model without cross-attention.
        next: predictions of the next token, or of the one that the text hides.
    """

    stack: str
    tokens: StackTokens
    token_vectors: np.ndarray | None
    position_vectors: np.ndarray | None
    embedding: np.ndarray
    layer: int
    layers: int
    can_open: tuple[int, ...]
    head: int
    heads: int
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    factor: float
    scores: np.ndarray
    weights: np.ndarray
    context: np.ndarray
    attention_output: np.ndarray
    inner: np.ndarray | None
    feedforward_output: np.ndarray
    output: np.ndarray
    cross: LastCrossAttention | None
    next: NextToken | HiddenToken


@dataclass(frozen=True, eq=False)
class TextPass:
    """A pass of one text through a model, of which any block and head can be opened.

    Args:
        subject: the model.
        next: predictions of the next token, or of the one that the text hides.
        stack: that reads the text.
        inputs: arguments of the model's `forward`.
        tensors: of the stack by their addresses, without the batch of one.
        cross: None for a model without cross-attention.
    """

    subject: Subject
    next: NextToken | HiddenToken
    stack: str
    inputs: Sequence[Any]
    tensors: dict[str, np.ndarray]
    cross: LastCrossAttention | None

    def open(self, layer: int = -1, head: int = 0) -> Walkthrough:
        """Return the tensors of a block and a head.

        Args:
            layer: number of the block, from 0; −1 is the first that can be opened.
            head: number of the head, from 0.

        Raises:
            ModelError: when the block has no softmax attention, or no feed-forward network.
            ConfigError: when there is no such layer or head.
        """
        blocks = stack_of(self.subject.model, self.stack).blocks
        can_open = open_layers(self.subject, self.stack)
        (layer,) = choose([can_open[0] if layer == -1 else layer], len(blocks), "layer")
        if layer not in can_open:
            numbers = ", ".join(str(each + 1) for each in can_open)
            raise ModelError(
                f"Block {layer + 1} of the {self.stack} has no attention with a softmax to follow, "
                "with a feed-forward network after it",
                remedy=f"Choose one that has: {numbers}",
            )
        module = sublayers(blocks[layer])["self"].module
        (head,) = choose([head], module.num_heads, "head")
        found, block = self.tensors, f"{self.stack}.{layer}"
        shared = head // (module.num_heads // module.num_kv_heads)
        heads = {"query": head, "key": shared, "value": shared}
        heads |= dict.fromkeys(("scores", "weights", "context"), head)
        embedding = found[f"{self.stack}.embedding"]
        token_vectors, position_vectors = _summands(self, embedding)
        return Walkthrough(
            stack=self.stack,
            tokens=self.next.reading.tokens(self.stack),
            token_vectors=token_vectors,
            position_vectors=position_vectors,
            embedding=embedding,
            layer=layer,
            layers=len(blocks),
            can_open=can_open,
            head=head,
            heads=module.num_heads,
            factor=module.scale,
            attention_output=found[f"{block}.self.output"],
            inner=found.get(f"{block}.feedforward.inner"),
            feedforward_output=found[f"{block}.feedforward.output"],
            output=found[f"{block}.output"],
            cross=self.cross,
            next=self.next,
            **{name: found[f"{block}.self.{name}"][each] for name, each in heads.items()},
        )


def pass_text(subject: Subject, text: str, chosen: Sequence[int] = ()) -> TextPass:
    """Send a text through a model of language.

    Args:
        subject: a translator, a language model or a masked language model.
        text: the source, the beginning of a text, or a text with [MASK] for a hidden token.
        chosen: ids written so far; none for a masked language model.

    Raises:
        ModelError: when the model predicts no token, or no block of it can be opened.
        DataError: when there is no text, it is too long, it hides no token where the model predicts
            hidden ones, or an id is no token.
    """
    stack = "encoder" if "encoder" in subject.model.stacks() else "decoder"
    numbers = open_layers(subject, stack)
    result: NextToken | HiddenToken
    if subject.model.spec.generates:
        result = next_token(subject, text, chosen)
    else:
        result = hidden_token(subject, text)
    reading = result.reading
    wanted = [f"{stack}.{part}" for part in ("embedding", "*.output")]
    wanted += [f"{stack}.{n}.{part}.*" for n in numbers for part in ("self", "feedforward")]
    layer = None if stack == "decoder" or reading.decoder is None else _last_cross(subject)
    if layer is not None:
        wanted.append(f"decoder.{layer}.cross.weights")
    inputs = tensors(subject, [reading])
    found = {name: value[0] for name, value in capture(subject.model, inputs, wanted).items()}
    cross = None
    if layer is not None:
        cross = LastCrossAttention(layer, found[f"decoder.{layer}.cross.weights"][:, -1])
    return TextPass(subject, result, stack, inputs, found, cross)


def open_layers(subject: Subject, stack: str) -> tuple[int, ...]:
    """Return the numbers of the blocks with softmax attention and a feed-forward network.

    Raises:
        ModelError: when there is none.
    """
    blocks = [sublayers(block) for block in stack_of(subject.model, stack).blocks]
    numbers = tuple(
        number
        for number, parts in enumerate(blocks)
        if "self" in parts and parts["self"].has_softmax and "feedforward" in parts
    )
    if not numbers:
        pattern = subject.model.spec.stacks()[stack].pattern
        kinds = dict.fromkeys(each.part.kind for block in pattern for each in block.sublayers)
        raise ModelError(
            f"No block of the {stack} has attention with a softmax and a feed-forward network "
            f"after it: its parts are {', '.join(kinds).replace('_', ' ')}",
            remedy="Choose a model that has, or follow a block of this one by `block_flow`; in the "
            "studio that is the page Block",
        )
    return numbers


def hidden_token(subject: Subject, text: str) -> HiddenToken:
    """Predict the first token that a text hides.

    Args:
        subject: a masked language model.
        text: with [MASK] for a hidden token.

    Raises:
        ModelError: when the model predicts no hidden tokens.
        DataError: when there is no text, it is too long, or it hides no token.
    """
    model: Any = subject.model
    if "masked_lm" not in getattr(model, "heads", ()):
        raise ModelError(
            "This model predicts no words: it was trained for another task",
            remedy="Take a translator, a language model, or one that fills masks",
        )
    reading = read(subject, text)
    ids = reading.tokens("encoder").ids
    if subject.source.mask not in ids:
        raise DataError(
            "The text hides no word", where="text", remedy=f"Write {MASK} in place of a word"
        )
    row = ids.index(subject.source.mask)
    with inference(model):
        states = model(*tensors(subject, [reading]))
        logits = model.masked_lm_logits(states[0, row]).to(torch.float32)
    known = subject.source.pieces(range(min(subject.source.size, len(logits))))
    return HiddenToken(
        reading=reading,
        row=row,
        logits=array(logits),
        scores=array(logits.log_softmax(-1)),
        names=(*known, *(f"<{id}>" for id in range(len(known), len(logits)))),
    )


def _last_cross(subject: Subject) -> int | None:
    """Return the number of the last decoder block whose cross mixer has weights."""
    blocks = stack_of(subject.model, "decoder").blocks
    parts = [sublayers(block).get("cross") for block in blocks]
    numbers = [i for i, cross in enumerate(parts) if cross is not None and cross.has_heads]
    return numbers[-1] if numbers else None


def _summands(own: TextPass, embedding: np.ndarray) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Split the embedding into the vectors of tokens and of positions [L, D]."""
    model: Any = own.subject.model
    module = model.input_modules()[own.stack]
    if module.positions is None:
        return (embedding if module.norm is None else None), None
    with inference(model):
        positions = stack_positions([own.next.reading], own.inputs, own.stack)
        vectors = array(module.positions(positions).to(torch.float32))[0]
    return (embedding - vectors if module.norm is None else None), vectors
