"""The influence of tokens on each other in a layer of any mixer, with weights or without.

A token falls silent: in its place the mixer reads zeros. The change of every token's output is what
it had heard of that token, by all ways at once: through weights, gates and states. This is exact,
for the mixer is computed anew for each silent token. Attention weights answer a narrower question,
the share of each value in a sum, and a mixer without weights answers none.

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
"""Changes below it come from the order of sums in float32, and not from a token."""

_TOKENS_AT_ONCE = 1 << 13
"""Tokens of the texts, with one of them silent, that go through the model together."""


@dataclass(frozen=True, eq=False)
class Influence(Result):
    """The influence of every token on what a mixer gives every token.

    Args:
        stack: `encoder` or `decoder`.
        layer: number of the block, from 0.
        address: of the mixer, such as `decoder.1.mixer`.
        kind: of the mixer.
        tokens: of the stack.
        changes: [L, L] float32: row i, column j is the length of the change of token i's output
            when token j falls silent, divided by the length of that output. What is below
            `ROUNDING` is 0.
    """

    stack: str
    layer: int
    address: str
    kind: str
    tokens: tuple[str, ...]
    changes: np.ndarray

    @property
    def by_distance(self) -> np.ndarray:
        """Means [2, L] over the tokens of the change by one so many places before, and after."""
        sides = (self.changes, self.changes.T)
        return np.array(
            [[side.diagonal(-far).mean() for far in range(len(side))] for side in sides]
        )


def influence(
    subject: Subject, reading: ModelInput, stack: str | None = None, layer: int = -1
) -> Influence:
    """Measure who hears whom in the mixer of a block.

    Args:
        subject: the model.
        reading: from `read` or `see`.
        stack: `encoder` or `decoder`; the decoder where there is one, if None.
        layer: number of the block, from 0; −1 is the last.

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
    outputs = _outputs(subject, reading, name, address, getattr(blocks[number], mixer.name))
    places = torch.arange(len(tokens), device=subject.device)
    with inference(subject.model):
        whole = outputs(places.new_full((1,), -1))
        parts = places.split(max(1, _TOKENS_AT_ONCE // len(tokens)))
        heard = torch.cat([(outputs(silent) - whole).norm(dim=-1) for silent in parts])
    # An output of zeros has nothing to lose.
    changes = heard.mT / whole[0].norm(dim=-1).clamp(min=1e-30)[:, None]
    changes = changes.masked_fill(changes < ROUNDING, 0.0).float()
    return Influence(name, number, address, mixer.part.kind, tokens, array(changes))


def _outputs(
    subject: Subject, reading: ModelInput, stack: str, address: str, part: Any
) -> Callable[[Tensor], Tensor]:
    """Return a function from the silent token of each row [B] to a mixer's outputs [B, L, D].

    −1 silences none. The mixer is called by itself, so that nothing in the model is replaced while
    others use it.
    """
    inputs = tensors(subject, [reading])
    crosses = hasattr(part, "read")
    capture = Capture([f"{address}.input", *(["encoder.output"] if crosses else [])])
    run(subject.model, inputs, capture)
    x = capture.found[f"{address}.input"]
    at = stack_positions([reading], inputs, stack)
    bias = stack_of(subject.model, stack).position_bias

    def outputs(silent: Tensor) -> Tensor:
        is_silent = torch.arange(x.shape[1], device=x.device) == silent[:, None]
        rows = x.expand(len(silent), -1, -1).masked_fill(is_silent[..., None], 0.0)
        positions = at.expand(len(silent), -1)
        context = Context(
            Positions.of_self(positions), biases=() if bias is None else (bias,), embedding=rows
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
    """Return the sub-layer through which tokens of a block's input exchange information.

    Of recurrent layers that write from an encoder's output it is the one that reads both.
    """
    mixers = block.mixers()
    for sublayer in block.sublayers:
        if sublayer.part in mixers or sublayer.part.kind == "recurrent_decoder":
            return sublayer
    return None
