"""Real processes through the command line: the losses of one process, whatever the plan."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

STEPS = 12
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences of letters and the same letters in capitals, the other way round."""
    folder = tmp_path_factory.mktemp("corpus")
    draw = random.Random(1)
    for name, count in (("train", 400), ("valid", 4)):
        lines = [draw.choices("abcdefgh", k=draw.randint(3, 12)) for _ in range(count)]
        source = "".join(" ".join(line) + "\n" for line in lines)
        target = "".join(" ".join(reversed(line)).upper() + "\n" for line in lines)
        (folder / f"{name}.source").write_text(source)
        (folder / f"{name}.target").write_text(target)
    return folder


def command(corpus: Path, run: Path, *more: str, steps: int = STEPS) -> list[str]:
    """A run whose losses do not hang on the order of sums: smooth, and with a gentle start."""
    pairs = {
        kind: [str(corpus / f"{kind}.{side}") for side in ("source", "target")]
        for kind in ("train", "valid")
    }
    return [
        *(sys.executable, "-m", "heedful", "train", str(run), "--preset", "tiny"),
        *("--train", *pairs["train"], "--valid", *pairs["valid"]),
        *("--max-steps", str(steps), "--validation.every-steps", "6"),
        *("--checkpoint.every-steps", "4", "--tokenizer.vocabulary-size", "40"),
        *("--data.batch-tokens", "256", "--precision", "fp32", "--optimizer.accumulate", "2"),
        *("--model.norm-placement", "pre", "--model.activation", "gelu"),
        # Translations of a model that has learned nothing are as long as they may be, and are not
        # the point here: half of the time went into them.
        *("--model.width", "32", "--validation.beam", "1", "--validation.max-sentences", "2"),
        *more,
    ]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def train(corpus: Path, run: Path, *more: str, status: int = 0, steps: int = STEPS) -> str:
    words = command(corpus, run, *more, steps=steps)
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    assert "Warning" not in done.stderr
    return done.stderr


def events(run: Path, kind: str | None = None) -> list[dict[str, float]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [each for each in map(json.loads, lines) if each.get("event") == kind]


def check_alike(run: Path, like: Path) -> None:
    ours, others = events(run), events(like)
    assert [each["step"] for each in ours] == list(range(1, STEPS + 1))
    assert [each["tokens"] for each in ours] == [each["tokens"] for each in others]
    for name in ("loss", "nll", "grad_norm"):
        expected = [each[name] for each in others]
        assert [each[name] for each in ours] == pytest.approx(expected, rel=TOLERANCE)
    others_judged = {each["step"]: each["loss"] for each in events(like, "validation")}
    for each in events(run, "validation"):
        if each["step"] in others_judged:
            assert each["loss"] == pytest.approx(others_judged[each["step"]], rel=10 * TOLERANCE)


def check_same_bits(run: Path, like: Path) -> None:
    """Learned in the same order of sums: nothing differs at all."""
    weights = [(each / "model" / "model.safetensors").read_bytes() for each in (run, like)]
    assert weights[0] == weights[1]
    losses = [[each["loss"] for each in events(each_run)] for each_run in (run, like)]
    assert losses[0] == losses[1]


@pytest.fixture(scope="module")
def alone(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("alone") / "run"
    train(corpus, run)
    return run


@pytest.mark.parametrize(
    ("processes", "plan"),
    [(2, ()), (2, ("--parallel.shard", "2"))],
    ids=["copies", "shards"],
)
def test_the_losses_of_one_process(
    corpus: Path, alone: Path, tmp_path: Path, processes: int, plan: Sequence[str]
) -> None:
    """With dropout, which is drawn for a batch whoever learns from it."""
    more = ("--processes", str(processes), *plan, "--checkpoint.background", "true")
    said = train(corpus, tmp_path / "run", *more)
    check_alike(tmp_path / "run", alone)
    check_same_bits(tmp_path / "run", alone)
    assert said.count("Done (max_steps") == 1  # one process speaks for all
    assert not list((tmp_path / "run" / "checkpoints").glob(".temporary*"))


def test_matrices_in_parts(corpus: Path, tmp_path: Path) -> None:
    """Without dropout, of which each process draws its own inside of a sub-layer.

    Position biases have a number for each head, vectors of relative values serve all heads.
    """
    plain = ("--model.dropout", "0", "--checkpoint.ema-decay", "0.9")
    plain += ("--model.positions", "t5", "--model.relative-values", "4")
    train(corpus, tmp_path / "one", *plain)
    train(corpus, tmp_path / "two", *plain, "--processes", "2", "--parallel.tensor", "2")
    check_alike(tmp_path / "two", tmp_path / "one")


def test_resumed_by_other_numbers_of_processes(corpus: Path, tmp_path: Path) -> None:
    """Four parts of each update, whoever has them: 2 processes in shards, then 1."""
    run, parts = tmp_path / "run", ("--parallel.parts", "2")
    train(corpus, tmp_path / "one", *parts)
    plan = ("--processes", "2", "--parallel.shard", "2")
    train(corpus, run, *parts, *plan, steps=6)
    said = train(corpus, run, *parts, "--resume", "--parallel.shard", "1")
    assert "Resumed from step 6" in said
    check_alike(run, tmp_path / "one")
    check_same_bits(run, tmp_path / "one")


def wait_for(path: Path, lines: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if path.exists() and len(path.read_text().splitlines()) >= lines:
            return
        time.sleep(0.02)
    raise AssertionError("the run ended, or took too long")


@contextmanager
def started(corpus: Path, run: Path, errors: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A run of two processes, whose standard error goes to a file."""
    with errors.open("wb") as file:
        yield subprocess.Popen(
            command(corpus, run, "--processes", "2"), env=environment(), stderr=file
        )


def workers_of(process: subprocess.Popen[bytes]) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, check=False)
    return [int(each) for each in found.stdout.split()]


def test_a_killed_process_is_made_up_for(corpus: Path, alone: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with started(corpus, run, tmp_path / "errors") as process:
        wait_for(run / "metrics.jsonl", 6, process)
        os.kill(workers_of(process)[1], signal.SIGKILL)
        assert process.wait(120) == 0
    check_alike(run, alone)
    assert "Resumed from step 4" in (tmp_path / "errors").read_text()


def test_asked_to_stop_all_of_them_do(corpus: Path, alone: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with started(corpus, run, tmp_path / "errors") as process:
        wait_for(run / "metrics.jsonl", 5, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 1  # stopped, to be resumed
    text = (tmp_path / "errors").read_text()
    assert "go on with --resume" in text
    assert "Traceback" not in text
    assert "torch/" not in text  # what PyTorch says of signals
    train(corpus, run, "--resume", "--processes", "2")
    check_alike(run, alone)


def test_mistakes_are_told_once(corpus: Path, tmp_path: Path) -> None:
    said = train(corpus, tmp_path / "run", "--processes", "2", "--data.max-length", "1", status=2)
    assert said.count("longer than") <= 1
    assert "new starts" not in said
    said = train(corpus, tmp_path / "run", "--processes", "3", "--parallel.tensor", "2", status=2)
    assert "--processes 2" in said
    said = train(corpus, tmp_path / "run", "--processes", "3", "--parallel.tensor", "3", status=2)
    assert said.count("divides 4") == 1
    assert "lost the others" not in said
