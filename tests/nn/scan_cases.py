"""Invariants of mixers with a state: padding, order, packing, steps and beams change nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from heedful.nn.mixer import Context, Reordering
from heedful.nn.positions import Positions

TOLERANCE = {"rtol": 1e-4, "atol": 2e-5}

Naive = Callable[[Any, Tensor], Tensor]
"""The definition of a mixer in float64, token by token: x [L, D] to [L, D]."""


def jittered(module: Any, seed: int = 1) -> Any:
    """The module with other numbers in every parameter than those it starts with."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return module


def laid_out(texts: Sequence[Tensor], pads: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Texts [L, D] as rows [B, L, D] with so much padding before each, and their positions."""
    size = max(pad + len(text) for text, pad in zip(texts, pads, strict=True)) + 1
    x = torch.randn(len(texts), size, texts[0].shape[1], dtype=texts[0].dtype)
    positions = torch.full((len(texts), size), -1)
    rows = []
    for row, (text, pad) in enumerate(zip(texts, pads, strict=True)):
        positions[row, pad : pad + len(text)] = torch.arange(len(text))
        rows.append(torch.cat([x[row, :pad], text, x[row, pad + len(text) :]]))
    return torch.stack(rows), positions


def check_definition(
    module: Any, naive: Naive, lengths: Sequence[int], pads: Sequence[int]
) -> None:
    """Output and gradients of padded rows are those of each text alone, in float64."""
    width = module.width
    texts = [torch.randn(length, width, requires_grad=True) for length in lengths]
    x, positions = laid_out(texts, pads)
    y = module(x, Context(Positions.of_self(positions)))
    found = torch.cat([row[at >= 0] for row, at in zip(y, positions, strict=True)])
    exact = type(module)(width, module.spec).double()
    exact.load_state_dict(module.state_dict())
    wide = [text.detach().double().requires_grad_() for text in texts]
    expected = torch.cat([naive(exact, text) for text in wide])
    torch.testing.assert_close(found.double(), expected, **TOLERANCE)
    up = torch.randn_like(found)
    unused = {"allow_unused": True, "materialize_grads": True}  # a single token has no past
    mine = torch.autograd.grad(found, [*texts, *module.parameters()], up, **unused)
    right = torch.autograd.grad(expected, [*wide, *exact.parameters()], up.double(), **unused)
    for one, other in zip(mine, right, strict=True):
        scale = max(float(other.abs().max()), 1.0)
        torch.testing.assert_close(one.double() / scale, other / scale, rtol=1e-3, atol=1e-4)


def check_packed(module: Any, lengths: Sequence[int]) -> None:
    """Texts of one row are as if alone, and so are their gradients."""
    texts = [torch.randn(length, module.width, requires_grad=True) for length in lengths]
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    segments = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))[None]
    x = torch.cat(texts)[None]
    together = module(x, Context(Positions.of_self(positions, segments)))[0]
    alone = torch.cat(
        [
            module(text[None], Context(Positions.of_self(torch.arange(len(text))[None])))[0]
            for text in texts
        ]
    )
    torch.testing.assert_close(together, alone, **TOLERANCE)
    up = torch.randn_like(alone)
    mine, right = (torch.autograd.grad(y, texts, up) for y in (together, alone))
    for one, other in zip(mine, right, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@torch.no_grad()
def check_steps(module: Any, lengths: Sequence[int], pads: Sequence[int], chunk: int) -> None:
    """Prompts in chunks with padding anywhere, then beams that are reordered: as one pass."""
    width = module.width
    texts = [torch.randn(length, width) for length in lengths]
    x, positions = laid_out(texts, pads)
    state = module.initial_state(len(texts), torch.empty(0))
    for first in range(0, x.shape[1], chunk):
        part = slice(first, first + chunk)
        context = Context(Positions.of_self(positions[:, part]))
        _, state = module.step(x[:, part], state, context)
    order = torch.tensor([[0, 0]] + [[row, row] for row in range(1, len(texts))]).flip(0)
    state = state.reorder(Reordering(order))
    pasts = [[text, text] for text in reversed(texts)]
    at = torch.tensor(list(reversed(lengths)))[:, None]
    for number in range(3):
        token = torch.randn(len(texts), 2, width)
        context = Context(Positions.of_self((at + number).repeat(1, 2).reshape(-1, 1)))
        y, state = module.step(token, state, context)
        for row, past in enumerate(pasts):
            for beam in range(2):
                past[beam] = torch.cat([past[beam], token[row, beam][None]])
                places = torch.arange(len(past[beam]))[None]
                whole = module(past[beam][None], Context(Positions.of_self(places)))
                torch.testing.assert_close(y[row, beam], whole[0, -1], **TOLERANCE)
        swap = torch.tensor([[2 * row + 1, 2 * row] for row in range(len(texts))])
        state = state.reorder(Reordering(swap))
        pasts = [[past[1], past[0]] for past in pasts]


@torch.no_grad()
def check_neighbours(module: Any, lengths: Sequence[int], pads: Sequence[int]) -> None:
    """A row's answer depends neither on the order of the batch nor on what stands in padding."""
    texts = [torch.randn(length, module.width) for length in lengths]
    x, positions = laid_out(texts, pads)
    y = module(x, Context(Positions.of_self(positions)))
    other = torch.where((positions >= 0)[..., None], x, torch.randn_like(x)).flip(0)
    back = module(other, Context(Positions.of_self(positions.flip(0)))).flip(0)
    real = positions >= 0
    torch.testing.assert_close(back[real], y[real], **TOLERANCE)
