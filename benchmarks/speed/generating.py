"""How fast a language model of 124 million parameters writes, beside Hugging Face's GPT-2.

    python benchmarks/speed/generating.py                        on CUDA, about 5 minutes
    python benchmarks/speed/generating.py --device cpu --quick   shows that it runs

GPT-2's smallest size with random weights from a fixed seed, the same for all. Prompts of 32 random
tokens, each continued greedily by exactly 128 tokens: no token ends a text. One prompt at a time,
and 32 at a time. Figures are new tokens a second, from ids to ids; reading the prompts counts.

Heedful with weights in bfloat16. Hugging Face's `generate` likewise: plain, and with
`cache_implementation="static"` and its steps compiled, as its documentation advises; each with
the faster attention. All processes live on and take turns. The share of identical
continuations is that of the same tokens as Heedful gives; rounding makes them differ.
"""

from __future__ import annotations

import argparse
import random
import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from environments import MissingPeer, environment
from harness import Row, finish, new_parser, parse, say
from turns import Turn, Worker, WorkerError, alternate, ratio, summary

CONFIG: dict[str, Any] = {
    "n_layer": 12,
    "n_head": 12,
    "n_embd": 768,
    "n_positions": 1024,
    "vocab_size": 50_257,
}
SMALL = CONFIG | {"n_layer": 2, "n_head": 2, "n_embd": 64, "vocab_size": 512}
BATCHES = (1, 32)
"""Prompts at a time."""
PROMPT, NEW, CALLS = 32, 128, 2
"""Tokens of a prompt, new ones, and batches in a turn."""
OURS = "heedful bf16"
PLAIN = "huggingface bf16"


class Contest:
    """The contestants, ready to take turns.

    Args:
        arguments: of the program.
        stack: ends the processes.
    """

    def __init__(self, arguments: argparse.Namespace, stack: ExitStack) -> None:
        self.arguments = arguments
        self.stack = stack
        self.folder: Path = arguments.work / "generating"
        shutil.rmtree(self.folder, ignore_errors=True)
        quick = arguments.quick
        self.config = SMALL if quick else CONFIG
        self.prompt, self.new, self.calls = (8, 6, 1) if quick else (PROMPT, NEW, CALLS)
        self.batches = (1, 3) if quick else BATCHES
        self.workers: dict[str, Worker] = {}
        self.facts: dict[str, Any] = {}
        self.peers: dict[str, Any] = {}
        self.ids: dict[str, dict[int, list[list[int]]]] = {}
        self._add_heedful()
        if not arguments.no_peers:
            self._add_huggingface()

    def prompts(self, batch: int, calls: int) -> list[list[int]]:
        """Prompts of random tokens, always the same ones, for so many batches."""
        drawn = random.Random(batch)
        vocabulary = range(self.config["vocab_size"])
        return [drawn.choices(vocabulary, k=self.prompt) for _ in range(batch * calls)]

    def turns(self, batch: int) -> dict[str, Turn]:
        """The turn of every contestant with so many prompts at a time."""
        return {
            name: lambda _, name=name: self._turn(name, batch)  # type: ignore[misc]
            for name in self.workers
        }

    def identical(self, batch: int) -> dict[str, float]:
        """The percentage of each peer's continuations that are Heedful's too."""
        wanted = self.ids[OURS][batch]
        return {
            name: round(100 * sum(map(list.__eq__, ids[batch], wanted)) / len(wanted), 1)
            for name, ids in self.ids.items()
            if name != OURS
        }

    def _turn(self, name: str, batch: int) -> float:
        """New tokens a second."""
        done = self._generate(name, batch, self.calls)
        kept = ("peak_memory_mb", "gpu_memory_mb")
        self.facts[name] |= {key: done[key] for key in kept if key in done}
        self.ids.setdefault(name, {})[batch] = done["ids"]
        lengths = {len(ids) for ids in done["ids"]}
        assert lengths == {self.new}, f"{name}: {lengths} tokens, not {self.new}"
        return float(len(done["ids"]) * self.new / done["seconds"])

    def _generate(self, name: str, batch: int, calls: int) -> dict[str, Any]:
        prompts = self.prompts(batch, calls)
        return self.workers[name].ask("generate", prompts=prompts, batch=batch, new=self.new)

    def _worker(self, script: str, name: str, python: Path | None = None) -> Worker:
        log = self.folder / f"{name.replace(', ', '-').replace(' ', '-')}.log"
        worker = Worker(script, log, python=python, threads=self.arguments.threads)
        self.stack.callback(worker.close)
        return worker

    def _add_heedful(self) -> None:
        began = time.perf_counter()
        worker = self._worker("language_model_generator.py", OURS)
        export = None if self.arguments.no_peers else str(self.folder / "model")
        begun = worker.ask(
            "begin",
            config=self.config,
            precision="bf16",
            device=self.arguments.device,
            export=export,
        )
        self.workers[OURS] = worker
        for batch in self.batches:
            self._generate(OURS, batch, 2)  # a graph is recorded when its shape comes again
        seconds = round(time.perf_counter() - began, 2)
        kept = ("precision", "parameters")
        self.facts[OURS] = {key: begun[key] for key in kept} | {"warm_up_seconds": seconds}
        say(f"{OURS} is warm after {seconds} s")

    def _add_huggingface(self) -> None:
        try:
            python, self.peers["huggingface"] = environment("huggingface", self.arguments.envs)
        except MissingPeer as missing:
            self.peers["huggingface"] = f"left out: {missing}"
            say(f"huggingface is left out: {missing}")
            return
        compiles = not self.arguments.quick  # which takes a minute
        static = f"{PLAIN}, static cache{', compiled' * compiles}"
        for name in (PLAIN, static):
            began = time.perf_counter()
            worker = self._worker("gpt2_generator.py", name, python)
            try:
                begun = worker.ask(
                    "begin",
                    model=str(self.folder / "model"),
                    device=self.arguments.device,
                    static=name == static,
                    compile=name == static and compiles,
                    batches=[self.prompts(batch, 1) for batch in self.batches],
                    new=self.new,
                )
            except WorkerError as error:
                worker.close()
                self.facts[name] = {"left_out": str(error)}
                say(f"{name} is left out: {error}")
                continue
            seconds = round(time.perf_counter() - began, 2)
            kept = ("attention", "attention_seconds", "compiled_graphs")
            self.facts[name] = {key: begun[key] for key in kept} | {"warm_up_seconds": seconds}
            self.workers[name] = worker
            say(f"{name} is warm after {seconds} s: {begun['attention_seconds']}")


def rows_of(batch: int, figures: dict[str, list[float]]) -> list[Row]:
    """The lines of a size of a batch: Heedful beside each peer, or alone."""
    row: Row = {"unit": "tokens/s", "ours": summary(figures[OURS])}
    rows: list[Row] = [
        {
            **row,
            "work": f"batch {batch}: {OURS} / {peer}",
            "theirs": summary(runs),
            "ratio": ratio(figures[OURS], runs),
        }
        for peer, runs in figures.items()
        if peer != OURS
    ]
    return rows or [{**row, "work": f"batch {batch}: {OURS}"}]


def main() -> None:
    """Warm all up, let them take turns, write what came out."""
    parser = new_parser(__doc__)
    parser.add_argument(
        "--device", default="cuda", choices=["cpu", "cuda"], help="where all of them run (cuda)"
    )
    arguments = parse(parser)
    import torch

    if arguments.device == "cuda" and not torch.cuda.is_available():
        say("skipped: there is no CUDA GPU here")
        return
    rows: list[Row] = []
    facts: dict[str, Any] = {"figures": {}, "identical_percent": {}}
    with ExitStack() as stack:
        contest = Contest(arguments, stack)
        for batch in contest.batches:
            say(f"batch {batch}")
            figures = alternate(contest.turns(batch), arguments.rounds, say)
            rows += rows_of(batch, figures)
            name = f"batch {batch}"
            facts["figures"][name] = {n: summary(runs) for n, runs in figures.items()}
            facts["identical_percent"][name] = contest.identical(batch)
    facts["contestants"] = contest.facts
    facts["work"] = {
        "prompt_tokens": contest.prompt,
        "new_tokens": contest.new,
        "batches_a_turn": contest.calls,
    }
    finish(arguments, f"speed-generating-{arguments.device}", rows, facts, peers=contest.peers)


if __name__ == "__main__":
    main()
