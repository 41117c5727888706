"""CTranslate2, translating pieces that were prepared before."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ctranslate2
import serve


def main() -> None:
    """Answer: begin (load a model), then translate."""
    translator: Any = None
    names: list[str] = []

    def begin(model: str, compute_type: str, threads: int, device: str = "cpu") -> dict[str, Any]:
        nonlocal translator, names
        names = _vocabulary(Path(model))
        translator = ctranslate2.Translator(
            model,
            device=device,
            compute_type=compute_type,
            inter_threads=1,
            intra_threads=threads,
        )
        return {"compute_type": translator.compute_type}

    def translate(
        sentences: str, first: int, count: int, batch: int, search: Mapping[str, Any]
    ) -> dict[str, Any]:
        content = json.loads(Path(sentences).read_text(encoding="utf-8"))
        rows = content["ids"][first : first + count]
        pieces = [[names[id] for id in (*row, content["eos"])] for row in rows]
        calls = [[row] for row in pieces] if batch == 1 else [pieces]
        length = search["length"]
        limits = {"max_decoding_length": length, "min_decoding_length": length} if length else {}
        found: list[Any] = []
        began = time.perf_counter()
        for call in calls:
            found += translator.translate_batch(
                call,
                max_batch_size=batch,
                beam_size=search["beam"],
                length_penalty=0.0,
                **limits,
            )
        seconds = time.perf_counter() - began
        ids = {name: id for id, name in enumerate(names)}
        return {
            "seconds": seconds,
            "ids": [[ids[name] for name in each.hypotheses[0]] for each in found],
        }

    serve.serve({"begin": begin, "translate": translate})


def _vocabulary(model: Path) -> list[str]:
    """The pieces by id: of source and target alike, as the embeddings are shared."""
    names: list[str] = json.loads((model / "shared_vocabulary.json").read_text(encoding="utf-8"))
    return names


if __name__ == "__main__":
    main()
