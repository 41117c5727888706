"""A corpus of 100 million synthetic pairs read as a stream: speed, memory, and finding a place.

    python benchmarks/streams.py --work DIR
    python benchmarks/streams.py --work DIR --pairs 1000000 --distinct 100000 --seconds 10

Sentences are random words, 12 on the mean, the frequent ones as frequent as in a language. The
`--distinct` pairs are made and converted by `heedful data shard`; the index then names each shard
as often as it takes to have `--pairs` pairs, which are told apart by nothing but their numbers. It
stops where DIR has no room for four times the distinct pairs.

- convert: pairs a second of `heedful data shard`, and its peak of memory.
- read: batches of 4,096 positions as fast as they can be had, nobody training, made by a thread and
  by 1 and 2 processes: pairs and tokens a second, also of a second of a processor (other programs
  may run beside); memory of all processes (PSS) at ten times.
- seek: seconds from opening the folder to the batch of a place in each tenth of an epoch. In the
  first and the last it must be the batch that is met when reading on from the begin of its block.
- train: the real command with a tiny model, killed after some updates and resumed: seconds from the
  start of the process to the first update after that.

Writes RESULTS/streams/: result.json and table.md. Parts that were measured before stay as they are.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from machine import describe_machine
from tables import markdown_table

from heedful.data.corpus_spec import SHARD_INDEX, CorpusSpec
from heedful.events import Events
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.train.batch_source import Batch, DataPosition, Source
from heedful.train.run_settings import RunSettings
from heedful.train.task import prepare_task

HERE = Path(__file__).resolve().parent
WORDS = 30_000
MEAN_WORDS = 12
BYTES_OF_A_PAIR = 150
PARTS = ("convert", "read", "seek", "train")
PER_BLOCK = 2**20  # numbers of batches that a block has, see docs/design/decisions.md
TRAIN = """
    --preset tiny --model.width 64 --model.encoder-layers 1 --model.decoder-layers 1
    --model.feedforward 64 --model.num-heads 2 --tokenizer.vocabulary-size 8000
    --data.tokenizer-sample 100000 --checkpoint.every-steps 20 --max-steps 100000 --precision fp32
"""


def sentences(count: int, seed: int, words: list[str]) -> Iterator[str]:
    """Sentences of random words, the frequent ones as frequent as Zipf says."""
    draw = np.random.default_rng(seed)
    lengths = draw.poisson(MEAN_WORDS - 3, count) + 3
    ranks = np.exp(draw.random(int(lengths.sum())) * np.log(len(words))).astype(np.int64) - 1
    ends = np.cumsum(lengths).tolist()
    for start, end in zip([0, *ends], ends, strict=False):
        yield " ".join([words[rank] for rank in ranks[start:end].tolist()])


def vocabulary(seed: int) -> list[str]:
    """Words of syllables, the frequent ones short."""
    draw = np.random.default_rng(seed)
    syllables = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "en", "ar")]
    sizes = 1 + np.log2(np.arange(1, WORDS + 1)).astype(int) // 4
    return ["".join(draw.choice(syllables, size)) for size in sizes]


def make_corpus(path: Path, pairs: int) -> None:
    """Write pairs as TSV, a hundred thousand at a time."""
    first, second = vocabulary(1), vocabulary(2)
    with path.open("w", encoding="utf-8") as file:
        for start in range(0, pairs, 100_000):
            count = min(100_000, pairs - start)
            sides = (sentences(count, 2 * start + n, w) for n, w in enumerate((first, second)))
            file.writelines(f"{a}\t{b}\n" for a, b in zip(*sides, strict=True))


def convert(work: Path, distinct: int, pairs: int) -> dict[str, Any]:
    """Make the shards, and an index that names them often enough."""
    free = shutil.disk_usage(work).free
    if free < 4 * distinct * BYTES_OF_A_PAIR:
        raise SystemExit(f"{free / 1e9:.1f} GB are free: too little for {distinct:,} pairs")
    shards, corpus = work / "shards", work / "pairs.tsv"
    make_corpus(corpus, distinct)
    size = corpus.stat().st_size
    started, peak = time.monotonic(), 0
    command = [sys.executable, "-m", "heedful", "data", "shard", str(corpus), "--out", str(shards)]
    with psutil.Popen(command, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            time.sleep(0.05)
            with contextlib.suppress(psutil.Error):
                peak = max(peak, process.memory_info().rss)
                used = process.cpu_times()
    seconds = time.monotonic() - started
    corpus.unlink()
    index = json.loads((shards / SHARD_INDEX).read_text(encoding="utf-8"))
    share = 1 / -(-pairs // distinct)
    index["shards"] *= -(-pairs // distinct)
    (shards / SHARD_INDEX).write_text(json.dumps(index), encoding="utf-8")
    return {
        "distinct_pairs": distinct,
        "pairs": sum(shard["examples"] for shard in index["shards"]),
        "shards_in_index": len(index["shards"]),
        "text_mb": size / 1e6,
        "compressed_mb": sum(shard["bytes"] for shard in index["shards"]) * share / 1e6,
        "seconds": seconds,
        "processor_seconds": used.user + used.system,
        "peak_memory_mb": peak / 1e6,
    }


def source_of(work: Path, workers: int, tokenizers: TokenizerPair | None) -> tuple[Source, Any]:
    """The batches as training has them, and the tokenizers."""
    corpus = CorpusSpec(shards=str(work / "shards"))
    data = {"train": [corpus.plain()], "workers": workers, "tokenizer_sample": 100_000}
    settings = RunSettings.parse({"data": data, "tokenizer": {"vocabulary_size": 8000}})
    task = prepare_task(work, settings, tokenizers, Events())
    return task.source, task.tokenizers


def memory_mb() -> float:
    """PSS of this process and those it has started."""
    me = psutil.Process()
    return sum(p.memory_full_info().pss for p in (me, *me.children(recursive=True))) / 1e6


def processor_time() -> float:
    """Seconds of processors used by this process and those it has started."""
    me = psutil.Process()
    times = [p.cpu_times() for p in (me, *me.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def read(work: Path, workers: int, seconds: float, tokenizers: TokenizerPair) -> dict[str, Any]:
    """Read on from the begin; the first block, for which everybody waits, is not counted."""
    source, _ = source_of(work, workers, tokenizers)
    place = DataPosition(0, 0)
    source.batch(*place)
    started, used = time.monotonic(), processor_time()
    pairs = tokens = batches = 0
    memory: list[float] = []
    while (passed := time.monotonic() - started) < seconds:
        batch = source.batch(*place)
        pairs, tokens = pairs + len(batch.indices), tokens + batch.target_tokens
        batches += 1
        if passed > len(memory) * seconds / 10:
            memory.append(round(memory_mb(), 1))
        place = source.after(place)
    used = processor_time() - used
    source.close()
    return {
        "workers": workers,
        "processor_seconds": used,
        "seconds": passed,
        "batches": batches,
        "pairs_per_second": pairs / passed,
        "target_tokens_per_second": tokens / passed,
        "blocks": place.batch // PER_BLOCK,
        "memory_mb": memory,
    }


def same(one: Batch, other: Batch) -> bool:
    """True for batches of the same pairs and tokens."""
    tokens = (one.target_output, other.target_output)  # type: ignore[attr-defined]
    return bool((one.indices == other.indices).all()) and bool((tokens[0] == tokens[1]).all())


def read_all(work: Path, seconds: float) -> dict[str, Any]:
    """Read with each number of workers."""
    _, tokenizers = source_of(work, 0, None)
    return {"runs": [read(work, workers, seconds, tokenizers) for workers in (0, 1, 2)]}


def seek(work: Path) -> dict[str, Any]:
    """Find a place in each tenth of an epoch, each time anew."""
    seconds, processor_seconds = [], []
    source, tokenizers = source_of(work, 0, None)
    blocks = source.blocks  # type: ignore[attr-defined]
    for tenth in range(10):
        source.close()  # nothing works ahead meanwhile
        number = (tenth * blocks // 10 + blocks // 20) * PER_BLOCK + 100
        started = time.monotonic(), time.process_time()
        found = source_of(work, 0, tokenizers)[0]
        batch = found.batch(0, number)
        seconds.append(round(time.monotonic() - started[0], 2))
        processor_seconds.append(round(time.process_time() - started[1], 2))
        found.close()
        if tenth not in (0, 9):  # reading on takes longer than finding
            continue
        place = DataPosition(0, number - 100)
        while place.batch < number:
            place = source.after(place)
        assert place.batch == number
        assert same(batch, source.batch(*place)), "another batch than reading on gives"
    source.close()
    index = json.loads((work / "shards" / SHARD_INDEX).read_text(encoding="utf-8"))
    return {
        "pairs": sum(shard["examples"] for shard in index["shards"]),
        "blocks_of_an_epoch": blocks,
        "seconds": seconds,
        "processor_seconds": processor_seconds,
    }


def train(work: Path) -> dict[str, Any]:
    """Kill a run of the real command and resume it."""
    run = work / "run"
    words = ["train", str(run), "--train", str(work / "shards"), *TRAIN.split()]
    command = [sys.executable, "-m", "heedful", *words]
    first = until(command, run, 45)
    again = until([*command[:3], "train", str(run), "--resume"], run, 60)
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    speeds = [json.loads(line).get("tokens_per_second") for line in lines[-20:]]
    return {
        "seconds_to_first_update": first,
        "seconds_to_first_update_resumed": again,
        "target_tokens_per_second": float(np.median([s for s in speeds if s is not None])),
    }


def until(command: list[str], run: Path, steps: int) -> float:
    """Run a command until so many updates are made, kill it; seconds to the first of them."""
    metrics = run / "metrics.jsonl"
    least = metrics.stat().st_size if metrics.exists() else 0
    started, first = time.monotonic(), 0.0
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        done = 0
        while done < steps and process.poll() is None:
            time.sleep(0.01)
            size = metrics.stat().st_size if metrics.exists() else 0
            least = min(least, size)  # a resumed run first drops what followed its checkpoint
            if not first and size > least:
                first = time.monotonic() - started
            if first:
                lines = metrics.read_text(encoding="utf-8").splitlines()
                done = json.loads(lines[-1])["step"] if lines and lines[-1].endswith("}") else 0
        process.kill()
    assert first, "the run ended before it had begun"
    return first


def table(result: dict[str, Any]) -> str:
    """The figures for the guide."""
    made, found, trained = (result[part] for part in ("convert", "seek", "train"))
    seconds, processor = sorted(found["seconds"]), sorted(found["processor_seconds"])
    rows = [
        ["", "a second", "a second of a processor", "memory, MB"],
        [
            "`heedful data shard`",
            f"{made['distinct_pairs'] / made['seconds']:,.0f} pairs",
            f"{made['distinct_pairs'] / made['processor_seconds']:,.0f} pairs",
            f"{made['peak_memory_mb']:,.0f}",
        ],
    ]
    for each in result["read"]["runs"]:
        of_processor = each["pairs_per_second"] * each["seconds"] / each["processor_seconds"]
        memory = each["memory_mb"]
        rows.append(
            [
                f"read, {each['workers'] or 'no'} worker{'s' * (each['workers'] != 1)}",
                f"{each['pairs_per_second']:,.0f} pairs, "
                f"{each['target_tokens_per_second']:,.0f} target tokens",
                f"{of_processor:,.0f} pairs",
                f"{memory[1]:,.0f} at a tenth, {memory[-1]:,.0f} at the end",
            ]
        )
    lines = [
        f"A place in each tenth of an epoch of {found['pairs']:,} pairs was found in "
        f"{seconds[len(seconds) // 2]:.1f} seconds, {seconds[-1]:.1f} at most; "
        f"{processor[-1]:.1f} at most of a processor. `heedful train --resume` made its first "
        f"update {trained['seconds_to_first_update_resumed']:.1f} seconds after the process began.",
    ]
    return markdown_table(rows) + "\n" + "\n".join(lines) + "\n"


def main() -> None:
    """Measure all parts and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="folder for the shards")
    parser.add_argument("--pairs", type=int, default=100_000_000)
    parser.add_argument("--distinct", type=int, default=10_000_000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    arguments = parser.parse_args()
    work: Path = arguments.work
    work.mkdir(parents=True, exist_ok=True)
    folder = arguments.results / "streams"
    folder.mkdir(parents=True, exist_ok=True)
    written = folder / "result.json"
    result = json.loads(written.read_text(encoding="utf-8")) if written.exists() else {}
    parts = {
        "convert": lambda: convert(work, arguments.distinct, arguments.pairs),
        "read": lambda: read_all(work, arguments.seconds),
        "seek": lambda: seek(work),
        "train": lambda: train(work),
    }
    for part in arguments.parts:
        result[part] = {
            "command": f"python benchmarks/streams.py --work DIR --parts {part} --pairs "
            f"{arguments.pairs} --distinct {arguments.distinct} --seconds {arguments.seconds:g}",
            "machine": describe_machine(),
            "date": datetime.date.today().isoformat(),
            "load_before": os.getloadavg()[0],
            **parts[part](),
        }
        written.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(part, result[part], file=sys.stderr)
    if all(part in result for part in PARTS):
        (folder / "table.md").write_text(table(result), encoding="utf-8")
        print(table(result))


if __name__ == "__main__":
    main()
