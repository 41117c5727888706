"""Blocks of streams: the tokenizer's ids in batches, whoever makes them."""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from heedful.apps.shards.shard_writer import write_shards
from heedful.data.block_workers import BlocksAhead
from heedful.data.corpus_spec import CorpusSpec, DataSpec
from heedful.data.shard_blocks import (
    BlockPlace,
    PairBlock,
    PairPlanner,
    PairsOfBlock,
    ShardStream,
    TextPlanner,
)
from heedful.errors import DataError, RunError
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_pair

PAIRS = [(f"the dog {i} runs", f"der hund {i} rennt " * (1 + i % 3)) for i in range(60)]
PAIRS[7] = (" ", "leer")
PAIRS[13] = ("the dog " * 50, "der hund")


@functools.cache
def tokenizers() -> TokenizerPair:
    sources, targets = zip(*PAIRS, strict=True)
    return train_pair(TokenizerSpec(vocabulary_size=60, joint=False), sources, targets)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataSpec:
    folder = tmp_path_factory.mktemp("shards")
    (folder / "pairs.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in PAIRS))
    spec = CorpusSpec(file=str(folder / "pairs.tsv"))
    write_shards([spec], folder / "shards", shard_examples=8)
    corpus = CorpusSpec(shards=str(folder / "shards"), weight=2)
    return DataSpec(train=(corpus,), batch_tokens=100, max_length=60, block_mb=0.001)


def planner_of(data: DataSpec, seed: int = 1) -> PairPlanner:
    stream = ShardStream(data.train, "pairs", data, seed)
    return PairPlanner(stream, tokenizers(), data, keeps_texts=True)


def places(planner: PairPlanner, epochs: int = 1) -> Iterator[BlockPlace]:
    blocks = range(planner.stream.order.blocks)
    return (BlockPlace(epoch, block) for epoch in range(epochs) for block in blocks)


def test_every_usable_pair_is_in_the_batches_as_often_as_its_weight_says(data: DataSpec) -> None:
    planner = planner_of(data)
    shown: Counter[int] = Counter()
    left_out: Counter[str] = Counter()
    blocks = [planner.plan(place) for place in places(planner)]
    assert len(blocks) > 3
    for block in blocks:
        pairs = PairsOfBlock(block, tokenizers())
        for batch in block.batches:
            sources, targets = (pairs.ids_of(side, batch) for side in ("source", "target"))
            longest = max(len(ids) + 1 for ids in (*sources, *targets))
            assert longest * len(batch) <= 100
            for number, source, target in zip(batch.tolist(), sources, targets, strict=True):
                assert pairs.text_of(number) == PAIRS[number]
                assert source.tolist() == tokenizers().source.encode(PAIRS[number][0])
                assert target.tolist() == tokenizers().target.encode(PAIRS[number][1])
                shown[number] += 1
        left_out.update({reason: count for reason, (count, _) in block.left_out.items()})
    assert shown == {number: 2 for number in range(60) if number not in (7, 13)}
    assert left_out.keys() == {"empty source", "too long"}
    assert planner.stream.line_of(13).endswith("shard-000001.jsonl.gz:6")


def contents(block: PairBlock) -> list[Any]:
    return [block.numbers.tolist(), [batch.tolist() for batch in block.batches]]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_the_blocks_are_the_same_for_any_workers(data: DataSpec, workers: int) -> None:
    planner = planner_of(data)
    expected = {place: contents(planner.plan(place)) for place in places(planner, 3)}
    last = planner.stream.order.blocks - 1

    def following(place: BlockPlace) -> BlockPlace:
        return BlockPlace(*(place[0], place[1] + 1) if place[1] < last else (place[0] + 1, 0))

    ahead = BlocksAhead(planner, following, workers)
    try:
        for place in [*places(planner), BlockPlace(0, 1), BlockPlace(2, 0), BlockPlace(2, 1)]:
            assert contents(ahead.take(place)) == expected[place]
    finally:
        ahead.close()
    assert not workers_alive()


def workers_alive() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children()
        if "spawn_main" in " ".join(child.cmdline()) and child.status() != psutil.STATUS_ZOMBIE
    ]


@dataclass(frozen=True)
class Odd:
    """A planner that goes wrong."""

    how: str

    def plan(self, place: BlockPlace) -> tuple[int, int]:
        if place.block == 1 and self.how == "mistake":
            raise DataError("A line is wrong", where="here:3", remedy="Mend it")
        if place.block == 1 and self.how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if place.block == 1 and self.how == "bug":
            return 1 // 0, 0
        if self.how == "deaf":  # to what a terminal sends to all processes of a group
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
        return place.block, os.getpid()


def test_what_goes_wrong_in_a_worker_is_raised_here() -> None:
    expected = {
        "mistake": (DataError, r"here:3: A line is wrong\. Mend it\."),
        "killed": (RunError, r"has ended \(by signal 9\).*data\.block_mb"),
        "bug": (RuntimeError, r"ZeroDivisionError"),
    }
    for how, (kind, message) in expected.items():
        ahead = BlocksAhead(Odd(how), lambda place: BlockPlace(0, place.block + 1), 1)
        assert ahead.take(BlockPlace(0, 0))[0] == 0
        with pytest.raises(kind, match=message):
            ahead.take(BlockPlace(0, 1))
        ahead.close()
    assert not workers_alive()


def test_signals_of_the_group_do_not_reach_a_worker() -> None:
    ahead = BlocksAhead(Odd("deaf"), lambda place: BlockPlace(0, place.block + 1), 1)
    pids = {ahead.take(BlockPlace(0, block))[1] for block in range(3)}
    assert len(pids) == 1
    ahead.close()
    assert not workers_alive()


PARENT = """
import os, sys
sys.path.insert(0, sys.argv[1])
from heedful.data.block_workers import BlocksAhead
from heedful.data.shard_blocks import BlockPlace
from test_shard_blocks import Odd
if __name__ == "__main__":
    ahead = BlocksAhead(Odd(""), lambda place: BlockPlace(0, place.block + 1), 2)
    print(*{ahead.take(BlockPlace(0, block))[1] for block in range(4)}, flush=True)
    if sys.argv[2] == "killed":
        os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("end", ["killed", "quiet"])
def test_workers_end_with_the_process_that_trains(tmp_path: Path, end: str) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    with psutil.Popen(
        [sys.executable, str(script), str(Path(__file__).parent), end], stdout=-1, text=True
    ) as process:
        pids = list(map(int, process.stdout.readline().split()))
        process.wait(20)
    assert len(pids) == 2
    deadline = time.monotonic() + 10
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(psutil.pid_exists, pids))


def test_a_worker_loads_no_torch() -> None:
    code = "import sys, heedful.data.block_workers; sys.exit('torch' in sys.modules)"
    with psutil.Popen([sys.executable, "-c", code]) as process:
        assert process.wait(30) == 0


def test_weights_that_leave_nothing_are_an_error(data: DataSpec) -> None:
    few = [spec.model_copy(update={"weight": 1e-9}) for spec in data.train]
    with pytest.raises(DataError, match="no example of any corpus"):
        ShardStream(few, "pairs", data, 1)


def test_a_block_of_nothing_usable_is_an_error(data: DataSpec) -> None:
    short = data.model_copy(update={"max_length": 2})
    planner = planner_of(short)
    with pytest.raises(DataError, match=r"No example .* too long \(.*shard-00000\d\.jsonl\.gz:\d"):
        planner.plan(BlockPlace(0, 0))


def test_texts_of_a_block_are_cut_into_windows(tmp_path: Path) -> None:
    texts = [f"the dog {i} runs " * (i % 4 + 1) for i in range(40)]
    (tmp_path / "a.txt").write_text("".join(text + "\n" for text in texts))
    spec = CorpusSpec(file=str(tmp_path / "a.txt"))
    write_shards([spec], tmp_path / "shards", shard_examples=6, unit="line")
    corpus = CorpusSpec(shards=str(tmp_path / "shards"))
    data = DataSpec(train=(corpus,), block_mb=0.0004)
    stream = ShardStream(data.train, "texts", data, 1)
    planner = TextPlanner(stream, tokenizers().source, length=8, rows=3)
    seen = []
    for block in range(stream.order.blocks):
        made = planner.plan(BlockPlace(0, block))
        begins = [*made.begins.tolist(), len(made.ids)]
        for number, begin, end in zip(made.numbers, begins, begins[1:], strict=False):
            tokenizer = tokenizers().source
            ids = [tokenizer.bos, *tokenizer.encode(texts[number]), tokenizer.eos]
            assert made.ids[begin:end].tolist() == ids
            seen.append(int(number))
        starts = np.concatenate(made.batches)
        assert sorted(starts.tolist()) == list(range(0, len(made.ids) - 1, 8))
        assert all(len(batch) == 3 for batch in made.batches[:-1])
    assert sorted(seen) == list(range(40))
    assert seen != sorted(seen)
