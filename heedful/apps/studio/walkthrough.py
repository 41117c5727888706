"""One text through a model, tensor by tensor, from its tokens to the predicted token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from heedful.errors import DataError, ModelError
from heedful.inspect.attention_maps import choose
from heedful.inspect.decoding_steps import NextToken, next_token
from heedful.inspect.readings import ModelInput, read, stack_positions, tensors
from heedful.inspect.subject import Subject, array, capture, inference, stack_of, sublayers
from heedful.pipelines.encoder_input import MASK


@dataclass(frozen=True, eq=False)
class HiddenToken:
    """Predictions of a masked language model for the first mask token of a text.

    Args:
        reading: input of the model.
        row: index of the mask token.
        logits: [V] logits.
        scores: [V] log-probabilities.
        names: [V] tokens as strings, for display.
    """

    reading: ModelInput
    row: int
    logits: np.ndarray
    scores: np.ndarray
    names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class OpenHead:
    """The tensors of a head and of its block.

    Args:
        layer: index of the block.
        head: index of the head.
        attention: attention of the block.
        tensors: tensors by name. Of the head: `query`, `key` (both after rotary embedding), `value`
            and `context` (before the output projection), [L, E]; `scores` (input of the softmax; −∞
            for hidden keys) and `weights`, [L, L]. Of the block: `attention_output`,
            `feedforward_output` and `output`, [L, D]; `inner`, the activations of the feed-forward
            network, [L, F], or None for a mixture of experts.
    """

    layer: int
    head: int
    attention: Any
    tensors: dict[str, Any]


@dataclass(frozen=True, eq=False)
class TextPass:
    """A pass of one text through a model, with the tensors of all blocks and heads.

    Args:
        subject: the model.
        next: predictions of the next token, or of the mask token.
        stack: stack with the text as its input.
        inputs: arguments of the model's `forward`.
        tensors: tensors of the stack by address, without the batch dimension.
        cross: index of the last block with cross-attention, and the weights of the last token
            there, [H, Lk]; None for a model without cross-attention.
        back: weights of the last token in the same block's self-attention, [H, Lq]; None where
            that block has none.
        stream: vectors [D] of the last token in that block: `incoming`, what `self`, `cross` and
            `feedforward` add where it has them, and `output`; empty without cross-attention.
    """

    subject: Subject
    next: NextToken | HiddenToken
    stack: str
    inputs: Sequence[Any]
    tensors: dict[str, np.ndarray]
    cross: tuple[int, np.ndarray] | None
    back: np.ndarray | None
    stream: dict[str, np.ndarray]

    def open(self, layer: int = -1, head: int = 0) -> OpenHead:
        """Return the tensors of a block and a head.

        Args:
            layer: index of the block; −1 is the first block that can be shown.
            head: index of the head.

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
        # Grouped-query attention: query heads share a key/value head in consecutive groups.
        shared = head // (module.num_heads // module.num_kv_heads)
        heads = {"query": head, "key": shared, "value": shared}
        # Scores and weights have a row per query head even where keys are shared.
        heads |= dict.fromkeys(("scores", "weights", "context"), head)
        shown = {name: found[f"{block}.self.{name}"][each] for name, each in heads.items()}
        shown |= {
            "attention_output": found[f"{block}.self.output"],
            "inner": found.get(f"{block}.feedforward.inner"),
            "feedforward_output": found[f"{block}.feedforward.output"],
            "output": found[f"{block}.output"],
        }
        return OpenHead(layer, head, module, shown)

    def summands(self) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Return the token vectors and position encodings, [L, D], that add up to the embedding.

        Token vectors are None if a norm follows the sum, and encodings are None if the model adds
        none.
        """
        embedding = self.tensors[f"{self.stack}.embedding"]
        model: Any = self.subject.model
        module = model.input_modules()[self.stack]
        if module.positions is None:
            return (embedding if module.norm is None else None), None
        with inference(model):
            positions = stack_positions([self.next.reading], self.inputs, self.stack)
            vectors = array(module.positions(positions).to(torch.float32))[0]
        # The difference includes any scale of the token vectors; a normalised sum cannot be split.
        return (embedding - vectors if module.norm is None else None), vectors


def pass_text(subject: Subject, text: str, chosen: Sequence[int] = ()) -> TextPass:
    """Run a text through a model and capture the tensors of a walkthrough.

    Args:
        subject: a translator, a language model or a masked language model.
        text: source, prompt, or a text with `[MASK]`.
        chosen: ids chosen so far; none for a masked language model.

    Raises:
        ModelError: when the model predicts no tokens, or none of its blocks can be shown.
        DataError: when the text is empty, too long, or lacks `[MASK]` for a masked language model,
            or when an id is not in the vocabulary.
    """
    stack = "encoder" if "encoder" in subject.model.stacks() else "decoder"
    # Checked before the passes, so that a model that cannot be shown fails at once.
    numbers = open_layers(subject, stack)
    result: NextToken | HiddenToken
    if subject.model.spec.generates:
        result = next_token(subject, text, chosen)
    else:
        result = hidden_token(subject, text)
    reading = result.reading
    # Patterns: `*.output` matches the output of every block.
    wanted = [f"{stack}.{part}" for part in ("embedding", "*.output")]
    # All heads and blocks in one pass, so that choosing another in the studio costs nothing.
    wanted += [f"{stack}.{n}.{part}.*" for n in numbers for part in ("self", "feedforward")]
    layer = None if stack == "decoder" or reading.decoder is None else _last_cross(subject)
    if layer is not None:
        wanted += [f"decoder.{layer}.{part}.weights" for part in _decoder_parts(subject, layer)]
        wanted += _stream_of(subject, layer).values()
    inputs = tensors(subject, [reading])
    found = {name: value[0] for name, value in capture(subject.model, inputs, wanted).items()}
    cross = back = None
    stream: dict[str, np.ndarray] = {}
    if layer is not None:
        # The next token is predicted from the last query.
        cross = layer, found[f"decoder.{layer}.cross.weights"][:, -1]
        own = found.get(f"decoder.{layer}.self.weights")
        back = None if own is None else own[:, -1]
        stream = {name: found[at][-1] for name, at in _stream_of(subject, layer).items()}
    return TextPass(subject, result, stack, inputs, found, cross, back, stream)


def open_layers(subject: Subject, stack: str) -> tuple[int, ...]:
    """Return the indices of the blocks with softmax attention and a feed-forward network.

    Raises:
        ModelError: when there is no such block.
    """
    blocks = [sublayers(block) for block in stack_of(subject.model, stack).blocks]
    numbers = tuple(
        number
        for number, parts in enumerate(blocks)
        if "self" in parts and parts["self"].has_softmax and "feedforward" in parts
    )
    if not numbers:
        spec = subject.model.spec.stacks()[stack]
        kinds = dict.fromkeys(each.part.kind for each in spec.sublayers())
        raise ModelError(
            f"No block of the {stack} has attention with a softmax and a feed-forward network "
            f"after it: its parts are {', '.join(kinds).replace('_', ' ')}",
            remedy="Choose a model that has, or follow a block of this one by `block_flow`; in the "
            "studio that is the page Block",
        )
    return numbers


def hidden_token(subject: Subject, text: str) -> HiddenToken:
    """Predict the token that the first `[MASK]` of a text hides.

    Args:
        subject: a masked language model.
        text: text with `[MASK]` in place of a token.

    Raises:
        ModelError: when the model is no masked language model.
        DataError: when the text is empty, too long, or without `[MASK]`.
    """
    model: Any = subject.model
    if "masked_lm" not in getattr(model, "heads", ()):
        raise ModelError(
            "This model does not predict words",
            remedy="Choose a translator, a language model or a masked language model",
        )
    reading = read(subject, text)
    ids = reading.tokens("encoder").ids
    if subject.source.mask not in ids:
        raise DataError(
            "The text has no [MASK]", where="text", remedy=f"Write {MASK} in place of a word"
        )
    # Other masks of the text stay hidden, and their tokens are not predicted here.
    row = ids.index(subject.source.mask)
    with inference(model):
        states = model(*tensors(subject, [reading]))
        # Only one row is projected: logits of a whole text are L * V floats.
        logits = model.masked_lm_logits(states[0, row]).to(torch.float32)
    # The embedding table may be padded beyond the tokenizer's vocabulary.
    known = subject.source.pieces(range(min(subject.source.size, len(logits))))
    return HiddenToken(
        reading=reading,
        row=row,
        logits=array(logits),
        scores=array(logits.log_softmax(-1)),
        names=(*known, *(f"<{id}>" for id in range(len(known), len(logits)))),
    )


def _last_cross(subject: Subject) -> int | None:
    """Return the index of the last decoder block whose cross-attention has weights, or None."""
    blocks = stack_of(subject.model, "decoder").blocks
    parts = [sublayers(block).get("cross") for block in blocks]
    numbers = [i for i, cross in enumerate(parts) if cross is not None and cross.has_heads]
    return numbers[-1] if numbers else None


def _stream_of(subject: Subject, layer: int) -> dict[str, str]:
    """Return the addresses of the vectors that make a decoder block's output, by their names."""
    own = sublayers(stack_of(subject.model, "decoder").blocks[layer])
    incoming = f"decoder.{layer - 1}.output" if layer else "decoder.embedding"
    parts = [name for name in ("self", "cross", "feedforward") if name in own]
    outputs: dict[str, str] = {name: f"decoder.{layer}.{name}.output" for name in parts}
    return {"incoming": incoming, **outputs, "output": f"decoder.{layer}.output"}


def _decoder_parts(subject: Subject, layer: int) -> tuple[str, ...]:
    """Return the attentions of a decoder block that have weights: `cross`, and mostly `self`."""
    own = sublayers(stack_of(subject.model, "decoder").blocks[layer]).get("self")
    return ("cross", "self") if own is not None and own.has_softmax else ("cross",)
