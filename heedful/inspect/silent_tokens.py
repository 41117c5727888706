"""Influence of tokens on each other in any mixer, measured by silencing one token at a time.

The input vector of a token is replaced by zeros, and the change of every token's output is
measured. It includes every path of the mixer: weights, gates and states. It is exact, since the
mixer is computed again for each silent token. Attention weights answer a narrower question, the
share of each value in a sum, and a mixer without attention has no weights at all.

Shapes: B rows of a batch, L tokens, D model width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from heedful.errors import ModelError
from heedful.inspect.attention_maps import choose_layer
from heedful.inspect.readings import ModelInput, stack_positions, tensors
from heedful.inspect.subject import Result, Subject, array, inference, run, stack_of
from heedful.models.stack_spec import BlockSpec, SubLayerSpec
from heedful.nn.capture import Capture
from heedful.nn.mixer import Context, Memory
from heedful.nn.positions import Positions

ROUNDING = 1e-6
"""Relative changes below this come from the order of float32 sums, not from a token."""

_TOKENS_AT_ONCE = 1 << 13
"""Upper bound of L · B, the tokens of B copies of a text with one silent token each."""


@dataclass(frozen=True, eq=False)
class Influence(Result):
    """Influence of every token on a mixer's output at every token.

    Args:
        stack: `encoder` or `decoder`.
        layer: index of the block.
        address: address of the mixer, e.g. `decoder.1.mixer`.
        kind: kind of the mixer.
        tokens: tokens of the stack.
        changes: [L, L] float32 relative changes: row i, column j is the length of the change of
            token i's output when token j is silent, divided by the length of that output. Values
            below `ROUNDING` are 0.
    """

    stack: str
    layer: int
    address: str
    kind: str
    tokens: tuple[str, ...]
    changes: np.ndarray

    @property
    def by_distance(self) -> np.ndarray:
        """Mean changes [2, L] by distance: caused by earlier tokens, then by later tokens."""
        # Diagonal −d pairs token i with token i − d; of the transpose, with token i + d.
        sides = (self.changes, self.changes.T)
        return np.array(
            [[side.diagonal(-far).mean() for far in range(len(side))] for side in sides]
        )


def influence(
    subject: Subject, reading: ModelInput, stack: str | None = None, layer: int = -1
) -> Influence:
    """Measure the influence of tokens on each other in the mixer of a block.

    Args:
        subject: the model.
        reading: input from `read` or `see`.
        stack: `encoder` or `decoder`; None for the decoder where the model has one.
        layer: index of the block; −1 is the last.

    Raises:
        ModelError: when the model has no such stack, or the block has no mixer.
        ConfigError: when the stack has no such layer.
    """
    name = stack or reading.last_stack
    blocks: Any = stack_of(subject.model, name).blocks
    number = choose_layer(layer, len(blocks))
    mixer = mixer_of(subject.model.spec.stacks()[name].blocks[number])
    if mixer is None:
        raise ModelError(
            f"In block {number + 1} of the {name} no token hears another: it has no mixer",
            remedy="Choose another block",
        )
    address = f"{name}.{number}.{mixer.name.removesuffix('_attention')}"
    tokens = reading.tokens(name).pieces
    outputs = _outputs(subject, reading, address, mixer, getattr(blocks[number], mixer.name))
    places = torch.arange(len(tokens), device=subject.device)
    with inference(subject.model):
        # The reference is the same function without a silent token, so both sides of the difference
        # run the same kernel.
        whole = outputs(places.new_full((1,), -1))
        # One batch row for each silent token, L² tokens in all.
        parts = places.split(max(1, _TOKENS_AT_ONCE // len(tokens)))
        changed = torch.cat([(outputs(silent) - whole).norm(dim=-1) for silent in parts])
    # An output of zeros cannot change relative to its length; the clamp avoids 0 / 0.
    changes = changed.mT / whole[0].norm(dim=-1).clamp(min=1e-30)[:, None]
    changes = changes.masked_fill(changes < ROUNDING, 0.0).float()
    return Influence(name, number, address, mixer.part.kind, tokens, array(changes))


def _outputs(
    subject: Subject, reading: ModelInput, address: str, sublayer: SubLayerSpec, part: Any
) -> Callable[[Tensor], Tensor]:
    """Return a function from the silent token of each row [B] to a mixer's outputs [B, L, D].

    The index −1 silences no token. The mixer is called by itself on its captured input, so the
    model is not changed while others use it.
    """
    stack = address.split(".")[0]
    inputs = tensors(subject, [reading])
    crosses = sublayer.part.reads_memory
    capture = Capture([f"{address}.input", *(["encoder.output"] if crosses else [])])
    run(subject.model, inputs, capture)
    x = capture.found[f"{address}.input"]
    own_positions = stack_positions([reading], inputs, stack)
    bias = stack_of(subject.model, stack).position_bias

    def outputs(silent: Tensor) -> Tensor:
        is_silent = torch.arange(x.shape[1], device=x.device) == silent[:, None]
        # The input after the norm is silenced: zeros before a norm would not stay zeros.
        rows = x.expand(len(silent), -1, -1).masked_fill(is_silent[..., None], 0.0)
        positions = own_positions.expand(len(silent), -1)
        context = Context(
            # Positions stay real for a silent token: as padding it would be masked, which changes
            # the softmax of others.
            Positions.of_self(positions),
            biases=() if bias is None else (bias,),
            embedding=rows,
        )
        if not crosses:
            output: Tensor = part(rows, context)
            return output.double()
        memory = stack_positions([reading], inputs, "encoder").expand(len(silent), -1)
        states = capture.found["encoder.output"].expand(len(silent), -1, -1)
        context = replace(context, memory_positions=Positions(query=positions, key=memory))
        result, _ = part.step(rows, part.read(Memory(states, memory)), context)
        return cast("Tensor", result.double())

    return outputs


def mixer_of(block: BlockSpec) -> SubLayerSpec | None:
    """Return the sub-layer through which the tokens of a block exchange information, or None.

    In a block of a recurrent decoder it is the sub-layer that attends to the encoder's output too.
    """
    mixers = block.mixers()
    for sublayer in block.sublayers:
        if sublayer.part in mixers or sublayer.part.kind == "recurrent_decoder":
            return sublayer
    return None
