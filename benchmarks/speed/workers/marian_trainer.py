"""Hugging Face's MarianMT, trained by a plain loop with its best settings.

Adam is PyTorch's fused one, the loss its smoothed cross-entropy over padded batches, and of
the attention implementations that Transformers has the faster one here is taken.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import serve
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import MarianConfig, MarianMTModel

IGNORED = -100
Ids = Sequence[Sequence[int]]


class Trainer:
    """A model, its optimiser, and the batches that Heedful trains on.

    Args:
        shape: fields of MarianConfig.
        batches: file of pairs of token ids, batch by batch.
        device: where to train.
        compile: whether torch.compile is used.
    """

    def __init__(self, shape: dict[str, Any], batches: str, device: str, compile: bool) -> None:
        torch.manual_seed(1)
        content = json.loads(Path(batches).read_text(encoding="utf-8"))
        self.batches: list[list[Ids]] = content["batches"]
        self.pad, self.bos, self.eos = content["pad"], content["bos"], content["eos"]
        special = {"pad_token_id": self.pad, "bos_token_id": self.bos, "eos_token_id": self.eos}
        config = MarianConfig(**shape, **special, decoder_start_token_id=self.bos, use_cache=False)
        self.device = torch.device(device)
        self.model = MarianMTModel(config).to(self.device).train()
        self.forward: Any = torch.compile(self.model, dynamic=True) if compile else self.model
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True
        )
        self.place = 0
        self.loss = 0.0

    def parameters(self) -> int:
        """How many numbers are trained."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def train(self, updates: int, precision: str) -> tuple[float, int]:
        """Make updates with the next batches: seconds, and target tokens without padding."""
        tokens = 0
        batches = [self._batch() for _ in range(updates)]
        began = time.perf_counter()
        for batch in batches:
            tokens += self._update(batch, precision)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began, tokens

    def _batch(self) -> dict[str, Tensor]:
        sources, targets = self.batches[self.place % len(self.batches)]
        self.place += 1
        return {
            "input_ids": _padded([[*ids, self.eos] for ids in sources], self.pad),
            "attention_mask": _padded([[1] * (len(ids) + 1) for ids in sources], 0),
            "decoder_input_ids": _padded([[self.bos, *ids] for ids in targets], self.pad),
            "labels": _padded([[*ids, self.eos] for ids in targets], IGNORED),
        }

    def _update(self, batch: dict[str, Tensor], precision: str) -> int:
        batch = {name: tensor.to(self.device) for name, tensor in batch.items()}
        labels = batch.pop("labels")
        self.optimizer.zero_grad(set_to_none=True)
        with self._autocast(precision):
            logits = self.forward(**batch).logits
            loss = cross_entropy(
                logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, label_smoothing=0.1
            )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.loss = loss.item()
        return int((labels != IGNORED).sum())

    def _autocast(self, precision: str) -> AbstractContextManager[Any]:
        if precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)


def _padded(rows: Ids, fill: int) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows])


def main() -> None:
    """Answer: begin (a model and its warm-up), then train."""
    trainer: Trainer
    attention: dict[str, str] = {}

    def begin(
        shape: dict[str, Any],
        batches: str,
        precisions: Sequence[str],
        updates: int,
        device: str = "cpu",
        compile: bool = False,
    ) -> dict[str, Any]:
        nonlocal trainer
        began = time.perf_counter()
        trainer = Trainer(shape, batches, device, compile)
        seconds: dict[str, dict[str, float]] = {}
        for precision in precisions:
            seconds[precision] = {}
            for kind in ("eager", "sdpa"):
                trainer.model.set_attn_implementation(kind)
                trainer.train(1, precision)
                trainer.place = 0
                seconds[precision][kind] = round(trainer.train(updates, precision)[0], 3)
            attention[precision] = min(seconds[precision], key=seconds[precision].__getitem__)
        return {
            "parameters": trainer.parameters(),
            "attention": attention,
            "attention_seconds": seconds,
            "warm_up_seconds": round(time.perf_counter() - began, 2),
        }

    def train(first: int, updates: int, precision: str) -> dict[str, Any]:
        trainer.model.set_attn_implementation(attention[precision])
        trainer.place = first
        seconds, tokens = trainer.train(updates, precision)
        return {"seconds": seconds, "tokens": tokens, "loss": trainer.loss}

    serve.serve({"begin": begin, "train": train})


if __name__ == "__main__":
    main()
