"""Hugging Face's MarianMT, translating with `generate` and its best settings."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import serve
import torch
from transformers import MarianMTModel


class Translator:
    """An exported model.

    Args:
        model: its directory.
        device: where to run.
        dtype: of the weights.
    """

    def __init__(self, model: str, device: str, dtype: str) -> None:
        self.device = torch.device(device)
        self.model: Any = MarianMTModel.from_pretrained(model, dtype=getattr(torch, dtype))
        self.model = self.model.to(self.device).eval()

    def translate(
        self, sentences: str, first: int, count: int, batch: int, search: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Translate a part of a file of sentences: of like length together, tokens prepared."""
        content = json.loads(Path(sentences).read_text(encoding="utf-8"))
        rows = content["ids"][first : first + count]
        order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
        batches = [order[i : i + batch] for i in range(0, len(order), batch)]
        pad, eos = content["pad"], content["eos"]
        inputs = [_padded([[*rows[i], eos] for i in chosen], pad) for chosen in batches]
        options = _options(search, eos)
        found: dict[int, list[int]] = {}
        began = time.perf_counter()
        with torch.inference_mode():
            for chosen, ids in zip(batches, inputs, strict=True):
                ids = ids.to(self.device)
                output = self.model.generate(ids, attention_mask=(ids != pad).long(), **options)
                found.update(zip(chosen, output.tolist(), strict=True))
        seconds = time.perf_counter() - began
        special = {pad, eos, content["bos"]}
        ids = [[id for id in found[i] if id not in special] for i in range(len(rows))]
        return {"seconds": seconds, "ids": ids}


def _options(search: Mapping[str, Any], eos: int) -> dict[str, Any]:
    options = {
        "num_beams": search["beam"],
        "do_sample": False,
        "length_penalty": 0.0,
        "early_stopping": search["beam"] > 1,
    }
    length = search["length"]
    if length:
        # the end token is one more step, as it is for the others
        options |= {
            "min_new_tokens": length,
            "max_new_tokens": length + 1,
            "forced_eos_token_id": eos,
        }
    return options


def _padded(rows: Sequence[Sequence[int]], fill: int) -> torch.Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows])


def main() -> None:
    """Answer: begin (load a model), then translate."""
    translator: Translator | None = None

    def begin(
        model: str, sentences: str, search: Mapping[str, Any], count: int, batch: int, **where: str
    ) -> dict[str, Any]:
        nonlocal translator
        translator = Translator(model, where.get("device", "cpu"), where.get("dtype", "float32"))
        seconds = {}
        for kind in ("eager", "sdpa"):
            translator.model.set_attn_implementation(kind)
            translator.translate(sentences, 0, min(count, batch), batch, search)
            seconds[kind] = translator.translate(sentences, 0, count, batch, search)["seconds"]
        chosen = min(seconds, key=seconds.__getitem__)
        translator.model.set_attn_implementation(chosen)
        return {"attention": chosen, "attention_seconds": seconds}

    def translate(**work: Any) -> dict[str, Any]:
        assert translator is not None
        return translator.translate(**work)

    serve.serve({"begin": begin, "translate": translate})


if __name__ == "__main__":
    main()
