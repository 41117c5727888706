"""CTranslate2, translating pieces that were prepared before, with threads as it is fastest.

Its threads may share every operation of a batch, or each take batches of its own; which is faster
depends on model and batch, so both are tried before the first time is taken.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ctranslate2
import serve

TRIED = 8
"""Batches to find out with how threads are best used."""


def main() -> None:
    """Answer: begin (load a model), then translate."""
    translators: dict[str, Any] = {}
    chosen: dict[tuple[int, int], str] = {}
    names: list[str] = []

    def begin(model: str, compute_type: str, threads: int, device: str = "cpu") -> dict[str, Any]:
        nonlocal names
        names = _vocabulary(Path(model))
        ways = {(1, threads), (threads, 1), (1, 1)} if device == "cpu" else {(1, threads)}
        for inter, intra in sorted(ways):
            translators[f"{inter} x {intra}"] = ctranslate2.Translator(
                model,
                device=device,
                compute_type=compute_type,
                inter_threads=inter,
                intra_threads=intra,
            )
        return {"compute_type": next(iter(translators.values())).compute_type}

    def translate(
        sentences: str, first: int, count: int, batch: int, search: Mapping[str, Any]
    ) -> dict[str, Any]:
        content = json.loads(Path(sentences).read_text(encoding="utf-8"))
        pieces = [[names[id] for id in (*row, content["eos"])] for row in content["ids"]]
        length = search["length"]
        limits = {"max_decoding_length": length, "min_decoding_length": length} if length else {}

        def run(way: str, rows: list[list[str]]) -> tuple[float, list[Any]]:
            found: list[Any] = []
            began = time.perf_counter()
            for call in [[row] for row in rows] if batch == 1 else [rows]:
                found += translators[way].translate_batch(
                    call,
                    max_batch_size=batch,
                    beam_size=search["beam"],
                    length_penalty=0.0,
                    **limits,
                )
            return time.perf_counter() - began, found

        mode = (batch, search["beam"])
        if mode not in chosen:
            some = pieces[: TRIED * batch]
            for way in translators:
                run(way, some[:batch])
            chosen[mode] = min(translators, key=lambda way: run(way, some)[0])
        seconds, found = run(chosen[mode], pieces[first : first + count])
        ids = {name: id for id, name in enumerate(names)}
        return {
            "seconds": seconds,
            "threads": chosen[mode],
            "ids": [[ids[name] for name in each.hypotheses[0]] for each in found],
        }

    serve.serve({"begin": begin, "translate": translate})


def _vocabulary(model: Path) -> list[str]:
    """The pieces by id: of source and target alike, as the embeddings are shared."""
    names: list[str] = json.loads((model / "shared_vocabulary.json").read_text(encoding="utf-8"))
    return names


if __name__ == "__main__":
    main()
