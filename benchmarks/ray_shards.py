"""Shards translated by one process, by two nodes of Ray, and by two of which one is killed.

    python benchmarks/ray_shards.py --model en-de --data DIR [--sentences 2000] [--shards 40]

DIR holds multi30k/raw/train.en.gz (or set HEEDFUL_DATA). Its first --sentences are cut into
--shards files, which `heedful translate --shards` translates three times: in this process' child,
with one thread; on a cluster of two nodes of one core each, both on this machine; and on another
such cluster, whose second node is killed when a quarter of the shards is done. Bytes are compared,
and each file must stay the one it was when it first appeared. Seconds are of the whole command;
"sentences_per_second" counts them from the first file to the last, without the start of Ray.
Prints one JSON line, which also goes to RESULTS/ray-shards/result.json; table.md has its figures.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from driver import new_parser, parse
from report import write_result
from tables import markdown_table

ROOT = Path(__file__).resolve().parents[1]
TWO_NODES = ROOT / "tests" / "apps" / "shards" / "two_nodes.py"


def cut(data: Path, folder: Path, sentences: int, shards: int) -> None:
    """Write the first sentences of the corpus as so many files of text."""
    with gzip.open(data / "multi30k/raw/train.en.gz", "rt", encoding="utf-8") as corpus:
        lines = list(islice(corpus, sentences))
    for number in range(shards):
        part = lines[number * sentences // shards : (number + 1) * sentences // shards]
        (folder / f"part-{number:03}.txt").write_text("".join(part), encoding="utf-8")


class Watch:
    """Looks at a folder until a command ends: when files appear, and that they stay the same."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.seen: dict[str, tuple[int, int]] = {}
        self.times: list[float] = []
        self.rewritten = 0

    def look(self) -> None:
        for path in self.out.glob("*.txt"):
            place = path.stat().st_ino, path.stat().st_mtime_ns
            if path.name not in self.seen:
                self.times.append(time.monotonic())
            self.rewritten += self.seen.setdefault(path.name, place) != place

    def rate(self, sentences_of_a_shard: float) -> float:
        """Sentences a second from the first file to the last."""
        spent = self.times[-1] - self.times[0]
        return round((len(self.times) - 1) * sentences_of_a_shard / spent, 1)


def translate(
    arguments: argparse.Namespace, folder: Path, name: str, flags: list[str], halfway: Any = None
) -> dict[str, Any]:
    """Run the command, and call `halfway` when a quarter of the shards is done."""
    out = folder / name
    words = [sys.executable, "-m", "heedful", "translate", arguments.model, "--json"]
    words += ["--precision", arguments.precision, "--shards", f"{folder}/in", "--out", f"{out}"]
    start, watch = time.monotonic(), Watch(out)
    process = subprocess.Popen(
        words + flags,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    while process.poll() is None:
        watch.look()
        if halfway is not None and len(watch.seen) >= arguments.shards // 4:
            halfway()
            halfway = None
        time.sleep(0.02)
    watch.look()
    facts = json.loads(process.communicate()[0])
    assert process.returncode == 0
    assert halfway is None, "the command ended before a node was killed"
    return {
        "seconds": round(time.monotonic() - start, 1),
        "sentences_per_second": watch.rate(arguments.sentences / arguments.shards),
        "shards": facts["translated"],
        "rewritten": watch.rewritten,
    }


def on_two_nodes(run: Callable[[list[str], Callable[[], None]], dict[str, Any]]) -> dict[str, Any]:
    """Call `run` with the flags of a new cluster and a function that kills its second node."""
    process = subprocess.Popen(
        [sys.executable, str(TWO_NODES), "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    words = next(line.split() for line in process.stdout if line.startswith("address"))

    def kill() -> None:
        process.stdin.write("kill\n")
        process.stdin.flush()

    try:
        return run(["--engine", "ray", "--address", words[1]], kill)
    finally:
        process.stdin.close()
        process.wait(60)


def differing(folder: Path, name: str) -> int:
    """The number of shards whose bytes are others than those of one process."""
    shards = list((folder / "in").iterdir())
    pairs = [(folder / "local" / path.name, folder / name / path.name) for path in shards]
    return sum(one.read_bytes() != other.read_bytes() for one, other in pairs)


def main() -> None:
    """Measure, and write the result."""
    parser = new_parser(__doc__)
    parser.add_argument("--model", default="en-de")
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--shards", type=int, default=40)
    parser.add_argument("--precision", default="fp32")
    arguments = parse(parser)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "in").mkdir()
        cut(arguments.data, folder / "in", arguments.sentences, arguments.shards)
        found = {
            "local": translate(arguments, folder, "local", []),
            "two_nodes": on_two_nodes(lambda at, _: translate(arguments, folder, "two", at)),
            "one_killed": on_two_nodes(
                lambda at, kill: translate(arguments, folder, "killed", at, kill)
            ),
        }
        for name, run in (("two", "two_nodes"), ("killed", "one_killed")):
            found[run]["differing"] = differing(folder, name)
    names = {"local": "one process", "two_nodes": "two nodes", "one_killed": "two, one killed"}
    rows = [["", "sentences/s", "seconds in all", "shards", "written twice", "other bytes"]]
    for key, name in names.items():
        run = {"differing": 0, **found[key]}
        figures = ("sentences_per_second", "seconds", "shards", "rewritten", "differing")
        rows.append([name, *(str(run[figure]) for figure in figures)])
    folder = arguments.results / "ray-shards"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(markdown_table(rows), encoding="utf-8")
    settings = f"--sentences {arguments.sentences} --shards {arguments.shards}"
    command = f"python benchmarks/ray_shards.py --model {arguments.model} --data DIR {settings} "
    command += f"--precision {arguments.precision}"
    load = {"load_of_the_machine": os.getloadavg()[1]}
    write_result(arguments.results, "ray-shards", command, {**found, **load})


if __name__ == "__main__":
    main()
