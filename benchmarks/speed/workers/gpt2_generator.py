"""Hugging Face's GPT-2, which continues prompts with `generate` and its best settings.

Plain, or with a cache of fixed size and its steps compiled, as its documentation advises. No token
ends a text, so nothing is asked of the tokens while they come. For each size of a batch the faster
attention implementation is taken.
"""

from __future__ import annotations

import time
from typing import Any

import serve
import torch
from transformers import CompileConfig, GPT2LMHeadModel

ATTENTION = ("eager", "sdpa")


class Generator:
    """A model, and how it generates.

    Args:
        model: its directory.
        device: where to run.
        static: whether the cache has a fixed size.
        compile: whether steps are compiled; with a cache of fixed size only.
        dtype: type of the weights.
    """

    def __init__(self, model: str, device: str, static: bool, compile: bool, dtype: str) -> None:
        self.device = torch.device(device)
        self.model: Any = GPT2LMHeadModel.from_pretrained(model, dtype=getattr(torch, dtype))
        self.model = self.model.to(self.device).eval()
        self.model.generation_config.eos_token_id = None
        self.options: dict[str, Any] = {"do_sample": False, "pad_token_id": 0}
        if static:
            self.options["cache_implementation"] = "static"
        if compile and device == "cpu":  # on CUDA a static cache alone makes steps compiled
            config = CompileConfig()
            config._compile_all_devices = True
            self.options["compile_config"] = config
        self.attention: dict[int, str] = {}

    def warm_up(self, prompts: list[list[int]], new: int) -> dict[str, float]:
        """Find the faster attention for batches of this many prompts: the seconds of each kind."""
        seconds: dict[str, float] = {}
        for kind in ATTENTION:
            self.attention[len(prompts)] = kind
            for _ in range(3):  # graphs are compiled at first, then recorded, then run
                seconds[kind] = self.generate(prompts, len(prompts), new)["seconds"]
        self.attention[len(prompts)] = min(seconds, key=seconds.__getitem__)
        return seconds

    def generate(self, prompts: list[list[int]], batch: int, new: int) -> dict[str, Any]:
        """Continue prompts by exactly `new` tokens each, some at a time."""
        self.model.set_attn_implementation(self.attention[batch])
        calls = [torch.tensor(prompts[i : i + batch]) for i in range(0, len(prompts), batch)]
        ids: list[list[int]] = []
        began = time.perf_counter()
        for call in calls:
            call = call.to(self.device)
            whole = self.model.generate(
                call, attention_mask=torch.ones_like(call), max_new_tokens=new, **self.options
            )
            ids += whole[:, call.shape[1] :].tolist()
        return {"seconds": time.perf_counter() - began, "ids": ids}


def main() -> None:
    """Answer: begin (load a model and warm it up), then generate."""
    generator: Generator | None = None

    def begin(
        model: str,
        device: str,
        static: bool,
        compile: bool,
        batches: list[Any],
        new: int,
        dtype: str = "bfloat16",
    ) -> dict[str, Any]:
        nonlocal generator
        generator = Generator(model, device, static, compile, dtype)
        seconds = {len(prompts): generator.warm_up(prompts, new) for prompts in batches}
        counted = torch._dynamo.utils.counters["stats"] if compile else {}
        graphs = int(counted.get("unique_graphs", 0))
        if compile and not graphs:
            raise RuntimeError("`generate` compiled nothing")
        return {
            "attention": generator.attention,
            "attention_seconds": seconds,
            "compiled_graphs": graphs,
        }

    def generate(**work: Any) -> dict[str, Any]:
        assert generator is not None
        return generator.generate(**work)

    serve.serve({"begin": begin, "generate": generate})


if __name__ == "__main__":
    main()
