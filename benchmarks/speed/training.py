"""How fast translators train, beside Hugging Face's MarianMT on the very same batches.

    python benchmarks/speed/training.py base --data DIR     transformer-base, about 8 minutes
    python benchmarks/speed/training.py tiny --data DIR     preset tiny, about 4 minutes
    python benchmarks/speed/training.py big --data DIR --device cuda --batch-tokens 25000
    python benchmarks/speed/training.py tiny --data DIR --beside precision=fp32 --no-peers

Multi30k, English to German, raw text, a joint BPE of 10,000 pieces, dropout 0.1, label smoothing
0.1, gradients clipped, batches of at most 4,096 padded positions on the longer side. Heedful's
figure is that of its own training run (heedful.train.run), which is held after every block of
updates; Hugging Face's is that of a plain loop with PyTorch's fused AdamW, batches padded
beforehand, and the faster of its attention implementations. `--beside` adds a second run of
Heedful with settings and batches of its own. All processes live on and take turns.

Figures are target tokens a second: end tokens count, padding does not. Each ratio is one of two
blocks on the same batches in the same round. The share is the operations that the model needs for
the tokens (heedful.models.cost, padding not counted) a second, of what this processor does in
a large product of matrices in bfloat16, measured in the same round.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from corpus import BATCH_TOKENS, Batches, first_batches, marian_shape, run_settings
from environments import MissingPeer, environment
from harness import Row, finish, new_parser, parse, say
from turns import Turn, Worker, WorkerError, alternate, ratio, summary

PRESETS = {"base": "transformer-base", "tiny": "tiny", "big": "transformer-big"}
BLOCK = {"base": 3, "tiny": 10, "big": 2}
"""Updates in a block; some seconds for every contestant."""
WARM_UP = {"base": 2, "tiny": 5, "big": 6}
LIMITS = {"bf16": (1.8, 2.3), "fp32": (1.8, 2.0), "share": (60, 75), "tiny": (2.0, 3.0)}


class Contest:
    """The contestants of one size, ready to take turns.

    Args:
        arguments: of the program.
        stack: ends the processes.
    """

    def __init__(self, arguments: argparse.Namespace, stack: ExitStack) -> None:
        self.arguments = arguments
        self.stack = stack
        self.size: str = arguments.size
        self.block = arguments.block or (1 if arguments.quick else BLOCK[self.size])
        self.warm_up = 1 if arguments.quick else WARM_UP[self.size]
        self.folder: Path = arguments.work / f"training-{self.size}"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.batches = self._batches("batches", arguments.set)
        self.facts: dict[str, Any] = {}
        self.peers: dict[str, Any] = {}
        self.turns: dict[str, Turn] = {}
        for precision in arguments.precisions:
            self._add_heedful(f"heedful {precision}", precision, arguments.set, self.batches)
        if arguments.beside:
            precision, settings = arguments.precisions[0], arguments.beside
            batches = self._batches("batches-beside", settings)
            self._add_heedful(f"beside {precision}", precision, settings, batches)
        if not arguments.no_peers:
            self._add_huggingface()
        rates = self._worker("matmul_rate.py")

        def measure(number: int) -> float:
            shrink = 64 if arguments.quick else 1
            found = rates.ask("measure", device=arguments.device, shrink=shrink)
            self.rates.append(found["gflops"])
            return float(self.rates[-1]["bf16"])

        self.rates: list[dict[str, float]] = []
        self.turns["matmul bf16"] = measure

    def first(self, number: int) -> int:
        """The first batch of a round."""
        return self.warm_up + number * self.block

    def _settings(self, precision: str, changes: Sequence[str]) -> dict[str, Any]:
        settings = run_settings(
            self.arguments.data,
            self.arguments.work / "encoded",
            precision,
            device=self.arguments.device,
            batch_tokens=self.arguments.batch_tokens,
        )
        for item in changes:
            name, _, value = item.partition("=")
            *tables, key = name.split(".")
            inner = settings
            for table in tables:
                inner = inner.setdefault(table, {})
            inner[key] = int(value) if value.isdecimal() else value
        return settings

    def _batches(self, name: str, changes: Sequence[str]) -> Batches:
        needed = self.warm_up + self.arguments.rounds * self.block
        settings = self._settings("fp32", changes)
        batches = first_batches(PRESETS[self.size], settings, self.folder / name, needed)
        batches.write(self.folder / f"{name}.json")
        return batches

    def _worker(self, script: str, python: Path | None = None, label: str = "") -> Worker:
        log = self.folder / f"{script.removesuffix('.py')}{label}.log"
        worker = Worker(script, log, python=python, threads=self.arguments.threads)
        self.stack.callback(worker.close)
        return worker

    def _add_heedful(
        self, name: str, precision: str, changes: Sequence[str], batches: Batches
    ) -> None:
        label = name.replace(" ", "-")
        worker = self._worker("heedful_trainer.py", label=f"-{label}")
        begun = worker.ask(
            "begin",
            preset=PRESETS[self.size],
            settings=self._settings(precision, changes),
            run=str(self.folder / f"run-{label}"),
            updates=self.warm_up,
        )
        self.facts[name] = {
            "warm_up_seconds": round(begun["seconds"], 2),
            "compile_seconds": begun["compile_seconds"],
            "notes": [note for note in begun["notes"] if "Training in" in note or "ompil" in note],
        }
        say(f"{name} is warm after {begun['seconds']:.1f} s")
        assert begun["tokens"] == batches.tokens(0, self.warm_up), "other batches"

        def turn(number: int) -> float:
            return self._speed(name, number, worker.ask("train", updates=self.block), batches)

        self.turns[name] = turn

    def _add_huggingface(self) -> None:
        try:
            python, versions = environment("huggingface", self.arguments.envs)
            worker = self._worker("marian_trainer.py", python)
            begun = worker.ask(
                "begin",
                shape=marian_shape(self.batches.spec),
                batches=str(self.folder / "batches.json"),
                precisions=self.arguments.peer_precisions,
                updates=self.warm_up,
                device=self.arguments.device,
                compile=self.arguments.compile_peer,
            )
        except (MissingPeer, WorkerError) as missing:
            self.peers["huggingface"] = f"left out: {missing}"
            say(self.peers["huggingface"])
            return
        self.peers["huggingface"] = versions
        kept = ("parameters", "attention", "attention_seconds", "warm_up_seconds")
        for precision in self.arguments.peer_precisions:
            self.facts[f"huggingface {precision}"] = {key: begun[key] for key in kept}
        say(f"huggingface is warm: {begun['attention_seconds']}")
        for precision in self.arguments.peer_precisions:

            def turn(number: int, precision: str = precision) -> float:
                first = self.first(number)
                done = worker.ask("train", first=first, updates=self.block, precision=precision)
                return self._speed(f"huggingface {precision}", number, done, self.batches)

            self.turns[f"huggingface {precision}"] = turn

    def _speed(self, name: str, number: int, done: Mapping[str, Any], batches: Batches) -> float:
        """Tokens a second, of the batches that this round is about."""
        expected = batches.tokens(self.first(number), self.block)
        assert done["tokens"] == expected, f"{name}: {done['tokens']} tokens, not {expected}"
        facts = self.facts.setdefault(name, {})
        facts |= {key: done[key] for key in ("peak_memory_mb", "gpu_memory_mb") if key in done}
        runs = facts.setdefault("update_milliseconds", [])
        runs.append(round(1e3 * done["seconds"] / self.block, 3))
        facts["loss"] = round(done["loss"], 3)
        return float(done["tokens"] / done["seconds"])


def rows_of(contest: Contest, figures: dict[str, list[float]]) -> list[Row]:
    """The lines of the table."""
    size, rows = contest.size, []
    ours = {name: runs for name, runs in figures.items() if name.startswith("heedful")}
    theirs = {name: runs for name, runs in figures.items() if name.startswith("huggingface")}
    for name, runs in ours.items():
        precision = name.split()[1]
        row: dict[str, Any] = {
            "work": f"training {size}, {precision}",
            "unit": "target tokens/s",
            "ours": summary(runs),
        }
        beside = f"huggingface {'bf16' if precision == 'bf16' else 'fp32'}"
        if beside in theirs:
            row |= {"theirs": summary(theirs[beside]), "ratio": ratio(runs, theirs[beside])}
            if size == "base" and contest.arguments.device == "cpu" and precision in LIMITS:
                row["least"], row["aim"] = LIMITS[precision]
        rows.append(row)
        if (other := figures.get(f"beside {precision}")) is not None:
            row = {key: row[key] for key in ("unit", "ours")}
            row["work"] = f"training {size}, {precision} / {' '.join(contest.arguments.beside)}"
            rows.append(row | {"theirs": summary(other), "ratio": ratio(runs, other)})
    best = max(ours, key=lambda name: summary(ours[name])["median"])
    if theirs and len(ours) + len(theirs) > 2:  # of one pair it would say the same again
        beside = max(theirs, key=lambda name: summary(theirs[name])["median"])
        row = {
            "work": f"training {size}, best of each ({best} / {beside})",
            "unit": "target tokens/s",
            "ours": summary(ours[best]),
            "theirs": summary(theirs[beside]),
            "ratio": ratio(ours[best], theirs[beside]),
        }
        if size == "tiny":
            row["least"], row["aim"] = LIMITS["tiny"]
        rows.append(row)
    rows.append(_share(contest, ours[best], figures["matmul bf16"], best))
    return rows


def _share(contest: Contest, speeds: list[float], rates: list[float], name: str) -> Row:
    """How much of what the processor can multiply becomes training."""
    shares = []
    for number, (speed, rate) in enumerate(zip(speeds, rates, strict=True)):
        first = contest.first(number)
        operations = contest.batches.operations(first, contest.block)
        per_token = operations / contest.batches.tokens(first, contest.block)
        shares.append(100 * speed * per_token / (rate * 1e9))
    row: dict[str, Any] = {
        "work": f"{name}: share of the bf16 matmul rate",
        "unit": "%",
        "ours": summary(shares),
    }
    if contest.arguments.device == "cpu" and contest.size == "base":
        row["least"], row["aim"] = LIMITS["share"]
    return row


def main() -> None:
    """Warm all up, let them take turns, write what came out."""
    parser = new_parser(__doc__, data=True)
    parser.add_argument("size", choices=PRESETS, help="of the model")
    parser.add_argument("--precisions", nargs="+", default=["bf16", "fp32"], help="of Heedful")
    parser.add_argument(
        "--peer-precisions",
        nargs="+",
        default=["bf16", "fp32"],
        choices=["bf16", "fp32"],
        help="of Hugging Face",
    )
    parser.add_argument("--block", type=int, help="updates in a block")
    parser.add_argument(
        "--batch-tokens",
        type=int,
        default=BATCH_TOKENS,
        help=f"most positions of a batch on its longer side ({BATCH_TOKENS:,})",
    )
    parser.add_argument(
        "--device", default="cpu", choices=["cpu", "cuda"], help="where all of them train (cpu)"
    )
    parser.add_argument(
        "--compile-peer", action="store_true", help="compile Hugging Face's model with PyTorch"
    )
    parser.add_argument("--label", default="", help="what the folder of results ends in")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of Heedful's run"
    )
    parser.add_argument(
        "--beside",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting, in the place of those of --set, of a second run of Heedful",
    )
    arguments = parse(parser)
    if arguments.quick:
        arguments.batch_tokens = 256
    with ExitStack() as stack:
        contest = Contest(arguments, stack)
        figures = alternate(contest.turns, arguments.rounds, say)
        batches, updates = contest.batches, arguments.rounds * contest.block
        facts = {
            "figures": {name: summary(runs) for name, runs in figures.items()},
            "contestants": contest.facts,
            "matmul_gflops": contest.rates,
            "work": {
                "batch_tokens": arguments.batch_tokens,
                "updates_a_block": contest.block,
                "target_tokens": batches.tokens(contest.warm_up, updates),
                "target_positions": batches.positions(contest.warm_up, updates),
                "operations_a_target_token": round(
                    batches.operations(contest.warm_up, updates)
                    / batches.tokens(contest.warm_up, updates)
                ),
            },
        }
        rows = rows_of(contest, figures)
    name = f"speed-training-{arguments.size}{arguments.label}"
    finish(arguments, name, rows, facts, peers=contest.peers)


if __name__ == "__main__":
    main()
