"""Heedful's translator, from texts to translations."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import serve
import torch

import heedful


def main() -> None:
    """Answer: begin (load a model), then translate."""
    pipeline: Any = None

    def begin(model: str, precision: str, device: str = "cpu") -> dict[str, Any]:
        nonlocal pipeline
        pipeline = heedful.load(model, precision=precision, device=device)  # type: ignore[arg-type]
        chosen = pipeline.precision
        return {"precision": chosen.describe() if hasattr(chosen, "describe") else str(chosen)}

    def translate(
        sentences: str, first: int, count: int, batch: int, search: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Translate a part of a file of sentences; one by one if the batch is 1."""
        texts = json.loads(Path(sentences).read_text(encoding="utf-8"))["texts"]
        texts = texts[first : first + count]
        calls = [[text] for text in texts] if batch == 1 else [texts]
        found: list[Any] = []
        began = time.perf_counter()
        for call in calls:
            found += pipeline.translate(call, batch_size=batch, **_search(search))
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "pieces": [list(each.tokens) for each in found]}

    serve.serve({"begin": begin, "translate": translate})


def _search(search: Mapping[str, Any]) -> dict[str, Any]:
    length = search["length"]
    options = {"beam": search["beam"], "length_penalty": 0.0}
    return options | ({"min_length": length, "max_length": length} if length else {})


if __name__ == "__main__":
    main()
