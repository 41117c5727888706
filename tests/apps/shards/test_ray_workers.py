"""Actors of Ray write the bytes that one machine writes, also when a machine is lost."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from heedful.apps.shards.ray_workers import RayPool, _outcome, _pool_size, _ShardActor
from heedful.apps.shards.shard_forms import TableColumns
from heedful.apps.shards.shard_paths import FORMS
from heedful.apps.shards.shard_translation import LineTranslator, ShardJob
from heedful.cli.main import main
from heedful.errors import ModelError, UserError
from heedful.kernels.library import has_int8_kernels, kernels

from .conftest import QUICK, words

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="the extra ray is not installed"
)

Corpus = Callable[[int, int], Path]
ON_RAY = ["--engine", "ray"]
TWO_NODES = Path(__file__).with_name("two_nodes.py")


@contextmanager
def two_nodes() -> Iterator[tuple[str, Callable[[], None]]]:
    """A cluster of two nodes of one core: its address, and how to kill the second."""
    process = subprocess.Popen(
        [sys.executable, str(TWO_NODES), "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def answer(word: str) -> str:
        for line in process.stdout:
            if line.startswith(word):
                return line.split()[-1]
        raise AssertionError("the cluster ended")

    def kill() -> None:
        process.stdin.write("kill\n")
        process.stdin.flush()
        answer("killed")

    try:
        yield answer("address"), kill
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(60)


def command(model: Path, shards: Path, out: Path, *flags: str) -> list[str]:
    words = [sys.executable, "-m", "heedful", "translate", str(model), *QUICK]
    return [*words, "--shards", str(shards), "--out", str(out), *flags]


def contents(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir() if path.suffix in FORMS}


def test_two_nodes_of_which_one_is_killed(model: Path, corpus: Corpus, tmp_path: Path) -> None:
    shards, out = corpus(24, 100), tmp_path / "out"
    seen: dict[str, tuple[int, int]] = {}

    def look() -> None:
        """Keep which file each shard is when it is first seen; it must stay that file."""
        for path in out.glob("*.txt"):
            place = path.stat().st_ino, path.stat().st_mtime_ns
            assert seen.setdefault(path.name, place) == place

    with two_nodes() as (address, kill):
        process = subprocess.Popen(
            command(model, shards, out, *ON_RAY, "--address", address, "--json"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        until = time.monotonic() + 300
        while len(seen) < 6:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until
            look()
            time.sleep(0.01)
        kill()
        assert 6 <= len(seen) < 24
        while process.poll() is None:
            look()
            time.sleep(0.01)
        result, messages = process.communicate()
    assert process.returncode == 0, messages
    facts = json.loads(result)
    assert (facts["translated"], facts["failed"], facts["rows"]) == (24, {}, 2400)
    look()
    assert main(command(model, shards, tmp_path / "alone")[3:]) == 0
    assert contents(out) == contents(tmp_path / "alone")
    assert len(contents(out)) == 24


@pytest.mark.skipif(kernels() is None or not has_int8_kernels(), reason="no kernels for int8")
def test_eight_bits_and_two_threads_on_this_machine(model: Path, tmp_path: Path) -> None:
    """Ray is started on the loopback address alone, says nothing, and is gone afterwards."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    shards = tmp_path / "in"
    shards.mkdir()
    for number in range(3):
        table = pa.table({"id": list(range(40)), "text": words(number, 40)})
        pq.write_table(table, shards / f"{number}.parquet", row_group_size=30)
    (shards / "cut.parquet").write_bytes(b"PAR1")
    flags = ["--precision", "int8"]
    pool = ["--actors", "1", "--threads", "2", "--json"]
    process = subprocess.Popen(
        command(model, shards, tmp_path / "out", *flags, *ON_RAY, *pool),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    own, addresses, daemons = psutil.Process(process.pid), set(), set()
    while process.poll() is None:
        for child in own.children(recursive=True):
            try:
                listening = [each for each in child.net_connections() if each.status == "LISTEN"]
                addresses |= {each.laddr.ip for each in listening}
                daemons.add(child)
            except psutil.Error:
                continue
        time.sleep(0.2)
    result, messages = process.communicate()
    assert process.returncode == 1, messages
    assert json.loads(result)["translated"] == 3
    assert "failed: cut.parquet: " in messages
    assert not [line for line in messages.splitlines() if "ray" in line.lower()], messages
    assert addresses
    assert {address.removeprefix("::ffff:") for address in addresses} == {"127.0.0.1"}
    assert not psutil.wait_procs(daemons, 10)[1]
    alone = command(model, shards, tmp_path / "alone", *flags)
    assert subprocess.run(alone, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False).returncode
    assert contents(tmp_path / "out") == contents(tmp_path / "alone")
    assert len(contents(tmp_path / "out")) == 3


def test_a_cluster_that_does_not_answer_is_named(
    model: Path, corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command(model, corpus(2, 1), tmp_path / "out", *ON_RAY, "--address", "127.0.0.1:1")
    assert main(words[3:]) == 1
    assert "--address 127.0.0.1:1: Ray cannot be reached" in capsys.readouterr().err


def test_a_pool_that_does_not_fit_is_refused() -> None:
    """Ray would wait for more machines without a word."""
    machines = {"CPU": 8.0, "GPU": 1.0}
    assert _pool_size(RayPool(), machines) == 8
    assert _pool_size(RayPool(threads=3), machines) == 2
    assert _pool_size(RayPool(gpus=0.5), machines) == 2
    assert _pool_size(RayPool(actors=4, threads=2), machines) == 4
    with pytest.raises(UserError, match="8 cores and 1 GPUs: enough for 4 actors, and not for 5"):
        _pool_size(RayPool(actors=5, threads=2), machines)
    with pytest.raises(UserError, match="no room for one actor"):
        _pool_size(RayPool(threads=9), machines)


def test_a_translator_that_cannot_be_loaded_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load() -> LineTranslator:
        raise ModelError("There is no such model here")

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    actor = _ShardActor(ShardJob(tmp_path, TableColumns(), load, 1, 2, tmp_path))
    outcome = _outcome(actor({"path": ["a.txt"]})["outcome"][0])
    assert (outcome.name, outcome.record, outcome.is_fatal) == ("a.txt", None, True)
    assert "There is no such model here" in outcome.reason
    assert os.environ["OMP_NUM_THREADS"] == "2"
