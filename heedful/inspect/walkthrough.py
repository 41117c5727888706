"""One text through a model, tensor by tensor, from its pieces to the next token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from heedful.errors import ModelError
from heedful.inspect.attention_maps import choose
from heedful.inspect.decoding_steps import NextToken, next_token
from heedful.inspect.readings import Tokens, stack_positions, tensors
from heedful.inspect.subject import Subject, array, capture, inference, stack_of, sublayers


@dataclass(frozen=True, eq=False)
class CrossAttention:
    """The attention of the last decoder token to the encoder's, in the last block that has any.

    Args:
        layer: number of the block.
        weights: [H, Lk].
    """

    layer: int
    weights: np.ndarray


@dataclass(frozen=True, eq=False)
class Walkthrough:
    """The tensors of a pass that lead from a text to the next token.

    Those of one block are of the stack that reads the text: a translator's encoder, a language
    model's decoder.

    Args:
        stack: `encoder` or `decoder`.
        tokens: of that stack.
        token_vectors: [L, D], scaled; None where a norm follows, so that they cannot be told apart.
        position_vectors: [L, D]; None for a model that adds none to its embeddings.
        embedding: [L, D], the input of the first block.
        layer: number of the block.
        layers: number of blocks.
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
        cross: None for a language model.
        next: predictions of the next token.
    """

    stack: str
    tokens: Tokens
    token_vectors: np.ndarray | None
    position_vectors: np.ndarray | None
    embedding: np.ndarray
    layer: int
    layers: int
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
    cross: CrossAttention | None
    next: NextToken


def walk_through(
    subject: Subject, text: str, chosen: Sequence[int] = (), *, layer: int = 0, head: int = 0
) -> Walkthrough:
    """Follow a text through a translator or a language model to its next token.

    Args:
        subject: the model.
        text: the source, or the beginning of a text.
        chosen: ids written so far.
        layer: number of the block to open, from 0.
        head: number of the head to open, from 0.

    Raises:
        ModelError: when the model does not write, or the block has no softmax attention.
        DataError: when there is no text, it is too long, or an id is no token.
        ConfigError: when there is no such layer or head.
    """
    result = next_token(subject, text, chosen)
    reading = result.reading
    stack = "decoder" if reading.encoder is None else "encoder"
    blocks = stack_of(subject.model, stack).blocks
    (layer,) = choose([layer], len(blocks), "layer")
    parts = sublayers(blocks[layer])
    if "self" not in parts or not parts["self"].has_softmax:
        raise ModelError(
            f"Block {layer} of the {stack} has no attention with a softmax to follow",
            remedy="Choose another block, or another model",
        )
    module = parts["self"].module
    (head,) = choose([head], module.num_heads, "head")
    block = f"{stack}.{layer}"
    wanted = [f"{stack}.embedding", f"{block}.output", f"{block}.feedforward.*", f"{block}.self.*"]
    cross = _last_cross(subject) if stack == "encoder" else None
    if cross is not None:
        wanted.append(f"decoder.{cross}.cross.weights")
    inputs = tensors(subject, [reading])
    found = {name: value[0] for name, value in capture(subject.model, inputs, wanted).items()}
    own = {
        name: found[f"{block}.self.{name}"][head]
        for name in ("query", "scores", "weights", "context")
    }
    shared = head // (module.num_heads // module.num_kv_heads)
    own |= {name: found[f"{block}.self.{name}"][shared] for name in ("key", "value")}
    embedding = found[f"{stack}.embedding"]
    token_vectors, position_vectors = _summands(subject, stack, inputs, reading, embedding)
    return Walkthrough(
        stack=stack,
        tokens=reading.tokens(stack),
        token_vectors=token_vectors,
        position_vectors=position_vectors,
        embedding=embedding,
        layer=layer,
        layers=len(blocks),
        head=head,
        heads=module.num_heads,
        factor=module.scale,
        attention_output=found[f"{block}.self.output"],
        inner=found.get(f"{block}.feedforward.inner"),
        feedforward_output=found[f"{block}.feedforward.output"],
        output=found[f"{block}.output"],
        cross=(
            None
            if cross is None
            else CrossAttention(cross, found[f"decoder.{cross}.cross.weights"][:, -1])
        ),
        next=result,
        **own,
    )


def _last_cross(subject: Subject) -> int | None:
    """Return the number of the last decoder block with cross-attention."""
    blocks = stack_of(subject.model, "decoder").blocks
    numbers = [i for i, block in enumerate(blocks) if "cross" in sublayers(block)]
    return numbers[-1] if numbers else None


def _summands(
    subject: Subject, stack: str, inputs: Sequence[Any], reading: Any, embedding: np.ndarray
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Split the embedding into the vectors of tokens and of positions [L, D]."""
    model: Any = subject.model
    module = model.input_modules()[stack]
    if module.positions is None:
        return (embedding if module.norm is None else None), None
    with inference(model):
        positions = stack_positions([reading], inputs, stack)
        vectors = array(module.positions(positions).to(torch.float32))[0]
    return (embedding - vectors if module.norm is None else None), vectors
