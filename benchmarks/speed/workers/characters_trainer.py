"""nanoGPT's recipe for processors: its own model where a clone is given, else stated again here.

The loop does what nanoGPT's does on a processor: float32, no fused AdamW, gradients clipped.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import serve
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

CONTEXT, LAYERS, HEADS, WIDTH = 64, 4, 4, 128
RATE, BETAS, DECAY, CLIP = 1e-3, (0.9, 0.99), 0.1, 1.0


class Layer(nn.Module):
    """Attention and feed-forward, norms before them, no biases."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH, bias=False) for _ in range(2))
        self.mix = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, L, D] to the same."""
        parts = self.mix(self.norms[0](x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        result: Tensor = x + self.down(gelu(self.up(self.norms[1](x))))
        return result


class Restated(nn.Module):
    """The model of the recipe in plain PyTorch, its output tied to the embedding."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH, bias=False)

    def forward(self, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and mean loss, as nanoGPT's model gives them."""
        places = torch.arange(ids.shape[1])
        states = self.norm(self.layers(self.tokens(ids) + self.positions(places)))
        logits = states @ self.tokens.weight.T
        return logits, cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


def build(clone: str | None, vocabulary: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model and its optimiser."""
    torch.manual_seed(1337)
    if clone is None:
        model: Any = Restated(vocabulary)
        matrices = [p for p in model.parameters() if p.ndim > 1]
        rest = [p for p in model.parameters() if p.ndim < 2]
        groups: list[dict[str, Any]] = [{"params": matrices}, {"params": rest, "weight_decay": 0.0}]
        return model, torch.optim.AdamW(groups, lr=RATE, betas=BETAS, weight_decay=DECAY)
    sys.path.insert(0, clone)
    theirs = importlib.import_module("model")
    config = theirs.GPTConfig(
        block_size=CONTEXT,
        vocab_size=vocabulary,
        n_layer=LAYERS,
        n_head=HEADS,
        n_embd=WIDTH,
        dropout=0.0,
        bias=False,
    )
    model = theirs.GPT(config)
    return model, model.configure_optimizers(DECAY, RATE, BETAS, "cpu")


def main() -> None:
    """Answer: begin, then train."""
    model: Any = None
    optimizer: Any = None
    batches: list[tuple[Tensor, Tensor]] = []

    def begin(clone: str | None, batches_file: str, vocabulary: int) -> dict[str, Any]:
        nonlocal model, optimizer, batches
        model, optimizer = build(clone, vocabulary)
        content = json.loads(Path(batches_file).read_text(encoding="utf-8"))
        batches = [(torch.tensor(ids), torch.tensor(targets)) for ids, targets in content]
        return {"parameters": sum(p.numel() for p in model.parameters())}

    def train(first: int, updates: int) -> dict[str, Any]:
        began = time.perf_counter()
        model.train()
        loss = torch.zeros(())
        for ids, targets in batches[first : first + updates]:
            loss = model(ids, targets)[1]
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return {"seconds": time.perf_counter() - began, "loss": loss.item()}

    serve.serve({"begin": begin, "train": train})


if __name__ == "__main__":
    main()
