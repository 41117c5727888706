"""Heedful's continuation of prompts by GPT-2 with random weights."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import serve
import torch

from heedful.engines.inference.prepare import precision_of, prepare
from heedful.interop.architectures.decoders.gpt2 import ARCHITECTURE
from heedful.interop.hf_files import write_json_file, write_tensors
from heedful.models.build import build_model, canonical_weights
from heedful.models.causal_lm import CausalLM
from heedful.models.cost import count_parameters
from heedful.models.model_spec import CausalLMSpec
from heedful.pipelines.text_generation import generate


def main() -> None:
    """Answer: begin (make a model), then generate."""
    engine: Any = None

    def begin(
        config: dict[str, Any], precision: Any, device: str, export: str | None
    ) -> dict[str, Any]:
        """Make the model of a config.json; write it for a peer where `export` names a folder."""
        nonlocal engine
        torch.manual_seed(1)
        spec = ARCHITECTURE.read_config(config, where="config.json")
        model: Any = build_model(spec)
        if export is not None:
            write_for_peer(model, spec, Path(export))
        engine = prepare(model, precision, torch.device(device), donate=True)
        chosen = precision_of(engine)
        return {
            "precision": "as it is" if chosen is None else chosen.describe(),
            "parameters": count_parameters(spec),
        }

    def continue_prompts(prompts: list[list[int]], batch: int, new: int) -> dict[str, Any]:
        """Continue prompts by exactly `new` tokens each, some at a time."""
        calls = [prompts[i : i + batch] for i in range(0, len(prompts), batch)]
        chosen = precision_of(engine)
        assert chosen is not None
        results: list[Any] = []
        began, cpu = time.perf_counter(), time.process_time()
        with torch.inference_mode(), chosen.autocast():  # as `heedful.load` does
            for call in calls:
                results += generate(engine, call, max_length=new, batch_size=batch)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        return {
            "seconds": seconds,
            "cpu_seconds": time.process_time() - cpu,
            "ids": [list(each.tokens) for each in results],
        }

    serve.serve({"begin": begin, "generate": continue_prompts})


def write_for_peer(model: CausalLM, spec: CausalLMSpec, folder: Path) -> None:
    """Write a folder that `transformers` reads a model from."""
    folder.mkdir(parents=True)
    write_json_file(folder / "config.json", ARCHITECTURE.write_config(spec))
    tensors = ARCHITECTURE.table(spec).to_theirs(canonical_weights(model))
    write_tensors(folder / "model.safetensors", tensors)


if __name__ == "__main__":
    main()
