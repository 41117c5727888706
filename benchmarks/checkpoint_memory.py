"""Memory and seconds of checkpoints of a model in two shards: whole ones, and in parts.

Two processes have `transformer-base` in shards, with random moments. Each way of saving and of
reading has two processes of its own. The largest resident size while it goes on is what Linux keeps
as VmHWM, set back right before. The ways take turns.

    python benchmarks/checkpoint_memory.py --results benchmarks/results/checkpoint-memory
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from machine import describe_machine
from tables import markdown_table

from heedful.config import merge
from heedful.events import Events
from heedful.models.build import build_model
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.train.checkpoints import CheckpointStore
from heedful.train.model_weights import weights_of
from heedful.train.parallel.distribution import distribute
from heedful.train.parallel.team import Dimensions, Process, Team
from heedful.train.run_settings import RunSettings
from heedful.train.training_state import SavedTensors

MIB = 2**20
VOCABULARY = 37_000
WAYS = {"whole": "the first process writes all", "parts": "each process writes its part"}


def memory(name: str) -> float:
    """A line of this process's status in MiB: VmRSS now, VmHWM at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def measured(work: Callable[[], object]) -> dict[str, float]:
    """Seconds of some work, and the memory it takes at most beyond what there was before."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before, started = memory("VmRSS"), time.monotonic()
    work()
    seconds = time.monotonic() - started
    return {"seconds": seconds, "MiB": memory("VmHWM") - before, "before": before}


def new_model() -> torch.nn.Module:
    """`transformer-base`: 63 million parameters."""
    return build_model(translator_spec(TranslatorShape(), VOCABULARY, VOCABULARY))


def one_of_two(folder: Path, way: str, rounds: int) -> None:
    """Save and read as one of two processes; the first prints what both measured."""
    process = Process.here()
    base = {"data": {"train": [{"source": "a", "target": "b"}]}, "parallel": {"shard": 2}}
    settings = RunSettings.parse(merge(base, {"checkpoint": {"sharded": way == "parts"}}))
    team = Team(process, dimensions=Dimensions(shard=2))
    with Team(process).joined(torch.device("cpu")):
        model = new_model()
        distribution, _ = distribute(model, None, settings, team, new_model)  # type: ignore[arg-type]
        store = CheckpointStore(folder, settings.checkpoint)
        saved = SavedTensors(distribution, team, store)
        moments = {
            f"{kind}/{name}": torch.randn_like(each)
            for kind in ("exp_avg", "exp_avg_sq")
            for name, each in model.named_parameters()
        }

        def save(step: int) -> None:
            contents = saved.contents(weights_of(model), moments, {})
            team.together(lambda: contents and store.save(step, contents, {}))

        saves = [measured(lambda step=step: save(step)) for step in range(rounds)]
        checkpoint = store.newest(Events()) if team.main else None
        read = [measured(lambda: saved.read(checkpoint))]
        found = team.texts(json.dumps({"save": saves, "read": read}))
    if team.main:
        print(json.dumps([json.loads(each) for each in found]))


def of_both(way: str, rounds: int) -> list[dict[str, Any]]:
    """Start two processes that save in one way; what each measured."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    shared = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            subprocess.Popen(
                [
                    *(sys.executable, __file__, "--way", way, "--folder", folder),
                    *("--rounds", str(rounds)),
                ],
                env={
                    **os.environ,
                    **{name: str(value) for name, value in shared.items()},
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "MASTER_ADDR": "127.0.0.1",
                },
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        said = [process.communicate()[0] for process in processes]
    return list(json.loads(said[0].splitlines()[-1]))


def table(found: dict[str, list[list[dict[str, Any]]]]) -> str:
    """Medians of the seconds of the slower process, and the largest sizes of each of the two."""
    rows = [("", "save, s", "memory for it, MiB", "read, s", "memory for it, MiB")]
    for way, name in WAYS.items():
        cells = [name]
        for what in ("save", "read"):
            turns = [zip(*(each[what] for each in turn), strict=True) for turn in found[way]]
            both = [pair for turn in turns for pair in turn]
            seconds = statistics.median(max(one["seconds"] for one in pair) for pair in both)
            sizes = [max(one["MiB"] for one in each) for each in zip(*both, strict=True)]
            cells += [f"{seconds:.1f}", " and ".join(f"{size:,.0f}" for size in sizes)]
        rows.append(tuple(cells))
    return markdown_table(rows)


def main() -> None:
    """Measure both ways, or be one of the processes that do."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=2, help="processes started for each way")
    parser.add_argument("--rounds", type=int, default=2, help="checkpoints that they write")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--way", choices=list(WAYS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way is not None:
        one_of_two(options.folder, options.way, options.rounds)
        return
    found: dict[str, list[list[dict[str, Any]]]] = {way: [] for way in WAYS}
    for _ in range(options.turns):
        for way, turns in found.items():
            turns.append(of_both(way, options.rounds))
    print(table(found))
    if options.results is not None:
        options.results.mkdir(parents=True, exist_ok=True)
        facts = {"date": datetime.date.today().isoformat(), "load": os.getloadavg()}
        facts |= {"turns": options.turns, "rounds": options.rounds, "machine": describe_machine()}
        text = json.dumps({**facts, "found": found}, indent=2)
        (options.results / "found.json").write_text(text + "\n")
        (options.results / "table.md").write_text(table(found))


if __name__ == "__main__":
    main()
