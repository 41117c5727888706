"""Training, translating and generating on one CUDA GPU, beside the peers on the same one.

    python benchmarks/speed/gpu.py --data DIR --nanogpt CLONE
    python benchmarks/speed/gpu.py --data DIR --only train packed
    python benchmarks/speed/gpu.py --data DIR --device cpu --small

Each part runs alone within ten minutes on an H100; one that fails, or takes longer, is reported and
the next one begins. At the end a table has a line for every figure, with what is asked of it; it
and the minutes that each part took are in the folder of results too, beside those of each program,
which have all runs, versions, seconds to begin and peak memory. `--small` does little, with small
models: it shows that all of it runs, also on a processor, and its figures mean nothing.

Training is in bfloat16, in target tokens a second and as a share of the GPU's own rate in a large
product of matrices; Hugging Face's under autocast. `generate` has bfloat16 weights. Each program
says more: training.py, translating.py, generating.py, gpt2.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import Row, format_table, new_parser, parse, say, write
from turns import summary

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Part:
    """A part of the benchmark.

    Args:
        about: what it measures.
        minutes: it takes on an H100.
    """

    about: str
    minutes: int


PARTS = {
    "gpt2": Part("a language model of 124 M by nanoGPT's recipe, beside nanoGPT compiled", 5),
    "train": Part("transformer-big, uncompiled and compiled, beside Hugging Face likewise", 6),
    "packed": Part("transformer-big compiled, pairs packed in rows of 512 beside padded ones", 3),
    "checkpointing": Part("transformer-big with activations computed again, three ways", 4),
    "tiny": Part("preset tiny, batches of 4,096 positions, compiled, alone", 2),
    "translate": Part("transformer-big: beam 5 and greedy in batches, and one at a time", 5),
    "generate": Part("a language model of 124 M, greedy, 1 and 32 prompts, beside GPT-2", 6),
}

PLANS: dict[str, dict[str, list[str]]] = {
    "train": {
        "eager": ["--set", "compile=off"],
        "compiled": ["--set", "compile=on", "--compile-peer"],
    },
    "checkpointing": {
        "selective": ["--set", "compile=off", "--set", "checkpointing=selective", "--no-peers"],
        "full": ["--set", "compile=off", "--set", "checkpointing=full", "--no-peers"],
        "compiled-full": ["--set", "compile=on", "--set", "checkpointing=full", "--no-peers"],
    },
}
"""How a part trains, as flags of training.py."""

ROW = {True: 128, False: 512}
"""Positions of a row of packed pairs, with and without --small."""


@dataclass(frozen=True)
class Asked:
    """What is asked of a row.

    Args:
        part: that it is of.
        words: that its name holds, all of them.
        figure: `ratio` or `ours`.
        least: of the figure; None for no limit.
        most: of the figure; None for no limit.
        aim: beyond the least.
        text: of a wish that nothing here can be compared with.
    """

    part: str
    words: tuple[str, ...]
    figure: str = "ratio"
    least: float | None = None
    most: float | None = None
    aim: float | None = None
    text: str = ""

    def is_about(self, part: str, work: str) -> bool:
        """True for the row that is meant."""
        return part == self.part and all(word in work for word in self.words)

    def describe(self) -> str:
        """The wish as the table has it."""
        sign, limit = ("<=", self.most) if self.least is None else (">=", self.least)
        aim = "" if self.aim is None else f", aim {self.aim:g}"
        return self.text or f"{sign} {limit:g}{aim}"

    def verdict(self, row: Row) -> str:
        """Say whether it is met: yes, no, or ? where the figure is missing."""
        if self.figure not in row or self.text:
            return "?"
        found = row[self.figure]["median"]
        enough = self.least is None or found >= self.least
        return "yes" if enough and (self.most is None or found <= self.most) else "no"


ASKED = (
    Asked("gpt2", ("heedful compiled / ",), least=1.0, aim=1.15),
    Asked("gpt2", ("heedful compiled: seconds to begin",), "ours", most=15),
    Asked("train", ("compiled: training",), least=1.2),
    Asked("train", ("eager: training",), least=1.3),
    Asked("train", ("compiled: heedful", "matmul rate"), "ours", least=45),
    Asked("packed", ("packed: training", " / compile=on"), least=1.0),
    Asked("tiny", ("an update",), text=">= 5 x before"),
    Asked("translate", ("beam 5, batch 32", "/ huggingface"), least=4),
    Asked("translate", ("greedy, batch 64", "/ huggingface"), least=4),
    Asked("translate", ("one at a time", "/ huggingface"), least=5),
    Asked("generate", ("static cache, compiled",), least=1.5),
)
"""What is asked on an H100, by row."""

OF_CONTESTANTS = {
    "warm_up_seconds": ("seconds to begin", "s"),
    "gpu_memory_mb": ("peak memory of the GPU", "MB"),
}
"""Facts of contestants that become rows."""


@dataclass(frozen=True)
class Program:
    """A program of a part.

    Args:
        plan: what tells it from the part's others; "" where it is the only one.
        words: its name and its flags.
        result: the folder of its results.
    """

    plan: str
    words: list[str]
    result: str


def programs(part: str, arguments: Namespace) -> Iterator[Program]:
    """The programs of a part, to be run in this order."""
    size = "tiny" if arguments.quick else "big"
    device = arguments.device
    data = ["--data", str(arguments.data)]
    if part == "gpt2":
        clone = arguments.nanogpt
        words = [] if clone is None else ["--nanogpt", str(clone.resolve())]
        yield Program("", ["gpt2.py", *words], f"speed-gpt2-{device}")
    elif part == "generate":
        yield Program("", ["generating.py"], f"speed-generating-{device}")
    elif part == "translate":
        yield Program("", ["translating.py", size, *data], f"speed-translating-{size}")
    else:
        tokens, block = (4096, 20) if part == "tiny" else (arguments.batch_tokens, 4)
        block = 1 if arguments.quick else block
        for plan, words in plans(part, arguments.quick).items():
            size = "tiny" if part == "tiny" else size
            label = f"-{device}-{plan}"
            how = ["--precisions", "bf16", "--peer-precisions", "bf16", "--block", str(block)]
            how += ["--batch-tokens", str(tokens), f"--label={label}", *words, *data]
            yield Program(plan, ["training.py", size, *how], f"speed-training-{size}{label}")


def plans(part: str, small: bool) -> dict[str, list[str]]:
    """The plans of a part that trains, as flags of training.py."""
    compiled = ["--set", "compile=on", "--no-peers"]
    if part == "tiny":
        return {"tiny": compiled}
    if part == "packed":
        row = ROW[small]
        packed = ["--set", f"data.packed_length={row}", "--set", f"data.max_length={row // 2}"]
        return {"packed": [*compiled, *packed, "--beside", "compile=on"]}
    return PLANS[part]


class PartError(Exception):
    """A program of a part could not do its work; says why."""


def run(program: Program, common: list[str], results: Path, seconds: float) -> dict[str, Any]:
    """Run a program, saying what it says, and return its result.

    Args:
        program: to run.
        common: flags that all programs have.
        results: folder of results.
        seconds: that it may take.

    Raises:
        PartError: when it fails, takes longer or leaves no result.
    """
    say(f"\n== {' '.join(program.words)}")
    script, *words = program.words
    began, last, late = time.time(), "it said nothing", threading.Event()
    process = subprocess.Popen(
        [sys.executable, str(HERE / script), *words, *common],
        stdout=subprocess.DEVNULL,  # its table comes with all others
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )

    def stop() -> None:
        late.set()
        _end(process)

    assert process.stderr is not None
    timer = threading.Timer(max(seconds, 1.0), stop)
    timer.start()
    try:
        for line in process.stderr:
            say(line.rstrip())
            last = line.strip() or last
        status = process.wait()
    finally:
        timer.cancel()
        _end(process)
        process.stderr.close()
    if late.is_set():
        raise PartError("it took longer than it may")
    if status:
        raise PartError(f"exit status {status}: {last}")
    path = results / program.result / "result.json"
    if not path.exists() or path.stat().st_mtime < began - 1:  # one of before
        raise PartError(f"it left no result: {last}")
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result


def _end(process: subprocess.Popen[str]) -> None:
    """End a program that still runs, and its workers."""
    if process.poll() is None:
        with suppress(ProcessLookupError):  # it has just ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def rows_of(part: str, plan: str, result: Mapping[str, Any], *, judged: bool) -> Iterator[Row]:
    """The lines of a program's result, with what is asked of them.

    Args:
        part: that it is of.
        plan: of the program, or "".
        result: the content of its result.json.
        judged: whether to say what is met.
    """
    for row in [*result["rows"], *_of_contestants(part, result)]:
        kept = {key: row[key] for key in ("unit", "ours", "theirs", "ratio") if key in row}
        work = f"{plan}: {row['work']}" if plan else row["work"]
        asked = next((each for each in ASKED if each.is_about(part, work)), None)
        if asked is not None:
            kept["asked"] = asked.describe()
            kept |= {"met": asked.verdict(row)} if judged else {}
        yield {"work": work if plan == part else f"{part}: {work}", **kept}


def _of_contestants(part: str, result: Mapping[str, Any]) -> Iterator[Row]:
    """Lines of what each of Heedful's contestants took, with a peer's figure where there is one."""
    contestants: dict[str, Any] = result.get("contestants") or result.get("engines") or {}
    peers = [facts for name, facts in contestants.items() if not name.startswith("heedful")]
    beside = peers[0] if len(peers) == 1 else {}
    for name, facts in contestants.items():
        if not name.startswith("heedful"):
            continue
        if part == "tiny" and "update_milliseconds" in facts:
            ours = summary(facts["update_milliseconds"])
            yield {"work": f"{name}: an update", "unit": "ms", "ours": ours}
        for key, (what, unit) in OF_CONTESTANTS.items():
            if key not in facts:
                continue
            row: dict[str, Any] = {"work": f"{name}: {what}", "unit": unit}
            row["ours"] = summary([float(facts[key])])
            if key in beside:
                row["theirs"] = summary([float(beside[key])])
            yield row


def run_part(
    part: str, arguments: Namespace, common: list[str]
) -> tuple[list[Row], dict[str, Any]]:
    """Run a part: its rows, and the minutes it took with the reasons of what failed."""
    began = time.monotonic()
    rows: list[Row] = []
    failed: list[str] = []
    for program in programs(part, arguments):
        left = 60 * arguments.minutes - (time.monotonic() - began)
        name = f"{part} {program.plan}" if program.plan not in ("", part) else part
        try:
            result = run(program, common, arguments.results, left)
            found = list(rows_of(part, program.plan, result, judged=not arguments.quick))
            say(format_table(found))
            rows += found
        except PartError as error:
            say(f"{name} failed: {error}")
            failed.append(f"{name}: {error}")
            rows.append({"work": f"{name}: failed: {error}"})
    facts: dict[str, Any] = {"minutes": round((time.monotonic() - began) / 60, 1)}
    return rows, facts | {"expected": PARTS[part].minutes, "failed": failed}


def times(parts: Mapping[str, Mapping[str, Any]]) -> Iterable[str]:
    """A line for each part: minutes, those expected on an H100, and what failed."""
    for part, facts in parts.items():
        failed = f"; {len(facts['failed'])} failed" if facts["failed"] else ""
        yield f"{part}: {facts['minutes']} minutes ({facts['expected']} on an H100){failed}"


def main() -> None:
    """Run the parts; each program writes its own results, and all of them make a table."""
    listed = "\n".join(
        f"  {name:<14} {part.minutes} minutes  {part.about}" for name, part in PARTS.items()
    )
    total = sum(part.minutes for part in PARTS.values())
    listed = f"Parts, with the minutes expected on an H100; {total} in all:\n\n{listed}\n"
    parser = new_parser(f"{__doc__}\n{listed}", data=True)
    parser.add_argument(
        "--only",
        nargs="+",
        default=list(PARTS),
        choices=PARTS,
        metavar="PART",
        help="parts to run, in this order (all)",
    )
    parser.add_argument(
        "--device", default="cuda", choices=["cpu", "cuda"], help="where all of them run (cuda)"
    )
    parser.add_argument("--small", dest="quick", action="store_true", help="the same as --quick")
    parser.add_argument(
        "--batch-tokens",
        type=int,
        default=25_000,
        help="most positions of a batch of transformer-big on its longer side (25,000)",
    )
    parser.add_argument("--nanogpt", type=Path, help="a clone of nanoGPT, for the part gpt2")
    parser.add_argument(
        "--minutes", type=float, default=10, help="that a part may take before it is ended (10)"
    )
    arguments = parse(parser)
    import torch

    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("skipped: there is no CUDA GPU here", file=sys.stderr)
        return
    if arguments.device == "cuda":
        say(f"on {torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    common = ["--device", arguments.device, "--rounds", str(arguments.rounds)]
    common += ["--envs", str(arguments.envs), "--work", str(arguments.work)]
    common += ["--results", str(arguments.results), "--threads", str(arguments.threads)]
    common += ["--quick"] * arguments.quick + ["--no-peers"] * arguments.no_peers
    rows: list[Row] = []
    parts: dict[str, Any] = {}
    for part in arguments.only:
        found, parts[part] = run_part(part, arguments, common)
        rows += found
    _, table = write(arguments, f"speed-gpu-{arguments.device}", rows, {"parts": parts})
    print(f"{table}\n\n" + "\n".join(times(parts)), flush=True)
    raise SystemExit(any(facts["failed"] for facts in parts.values()))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # programs end with this one
    main()
