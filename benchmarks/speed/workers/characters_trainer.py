"""A recipe of nanoGPT's: its own model where a clone is given, else stated again here.

The loop does what nanoGPT's does: on a processor float32 and no fused AdamW, on CUDA bfloat16 under
autocast and the fused one; gradients clipped.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import serve
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

CLIP = 1.0


@dataclass(frozen=True)
class Recipe:
    """What a model is trained by.

    Args:
        context: tokens of a window.
        layers: blocks of the model.
        heads: of each attention.
        width: of the model.
        rate: of AdamW, and its betas and decay.
    """

    context: int
    layers: int
    heads: int
    width: int
    rate: float
    betas: tuple[float, float]
    decay: float


class Layer(nn.Module):
    """Attention and feed-forward, norms before them, no biases."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width, bias=False) for _ in range(2))
        self.mix = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, L, D] to the same."""
        parts = self.mix(self.norms[0](x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        result: Tensor = x + self.down(gelu(self.up(self.norms[1](x))))
        return result


class Restated(nn.Module):
    """The model of the recipe in plain PyTorch, its output tied to the embedding."""

    def __init__(self, recipe: Recipe, vocabulary: int) -> None:
        super().__init__()
        width = recipe.width
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(recipe.context, width)
        self.layers = nn.Sequential(*(Layer(width, recipe.heads) for _ in range(recipe.layers)))
        self.norm = nn.LayerNorm(width, bias=False)

    def forward(self, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and mean loss, as nanoGPT's model gives them."""
        places = torch.arange(ids.shape[1], device=ids.device)
        states = self.norm(self.layers(self.tokens(ids) + self.positions(places)))
        logits = states @ self.tokens.weight.T
        return logits, cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


def build(
    clone: str | None, recipe: Recipe, vocabulary: int, device: str
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model and its optimiser."""
    torch.manual_seed(1337)
    if clone is None:
        model: Any = Restated(recipe, vocabulary).to(device)
        matrices = [p for p in model.parameters() if p.ndim > 1]
        rest = [p for p in model.parameters() if p.ndim < 2]
        groups: list[dict[str, Any]] = [{"params": matrices}, {"params": rest, "weight_decay": 0.0}]
        return model, torch.optim.AdamW(
            groups,
            lr=recipe.rate,
            betas=recipe.betas,
            weight_decay=recipe.decay,
            fused=device == "cuda",
        )
    sys.path.insert(0, clone)
    theirs = importlib.import_module("model")
    config = theirs.GPTConfig(
        block_size=recipe.context,
        vocab_size=vocabulary,
        n_layer=recipe.layers,
        n_head=recipe.heads,
        n_embd=recipe.width,
        dropout=0.0,
        bias=False,
    )
    model = theirs.GPT(config).to(device)
    return model, model.configure_optimizers(recipe.decay, recipe.rate, recipe.betas, device)


def main() -> None:
    """Answer: begin, then train."""
    model: Any = None
    forward: Any = None
    optimizer: Any = None
    batches: list[tuple[Tensor, Tensor]] = []
    where = "cpu"

    def begin(
        recipe: dict[str, Any],
        clone: str | None,
        vocabulary: int,
        batches_file: str | None = None,
        rows: int = 0,
        device: str = "cpu",
        compile: bool = False,
    ) -> dict[str, Any]:
        """Random windows, `rows` of them, where there is no file of batches."""
        nonlocal model, forward, optimizer, batches, where
        where, began = device, time.perf_counter()
        wanted = Recipe(**recipe)
        model, optimizer = build(clone, wanted, vocabulary, device)
        forward = torch.compile(model) if compile else model
        if batches_file is None:
            ids = torch.randint(vocabulary, (rows, wanted.context), device=device)
            batches = [(ids, ids)]
            train(0, 2)
        else:
            content = json.loads(Path(batches_file).read_text(encoding="utf-8"))
            batches = [(torch.tensor(ids), torch.tensor(targets)) for ids, targets in content]
        return {
            "parameters": sum(p.numel() for p in model.parameters()),
            "warm_up_seconds": round(time.perf_counter() - began, 2),
        }

    def train(first: int, updates: int) -> dict[str, Any]:
        began = time.perf_counter()
        model.train()
        loss = torch.zeros(())
        for number in range(first, first + updates):
            ids, targets = batches[number % len(batches)]
            with torch.autocast(where, torch.bfloat16, enabled=where == "cuda"):
                loss = forward(ids, targets)[1]
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        value = loss.item()  # waits for the device
        return {"seconds": time.perf_counter() - began, "loss": value}

    serve.serve({"begin": begin, "train": train})


if __name__ == "__main__":
    main()
