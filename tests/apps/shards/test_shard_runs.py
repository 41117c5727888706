"""Shards are translated once, whatever ends a run, and bad ones fail alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heedful.apps.shards.shard_forms import TableColumns
from heedful.apps.shards.shard_records import MANIFEST, TranslatedFolder
from heedful.apps.shards.shard_translation import ShardJob, ShardWorker
from heedful.cli.main import main

from .conftest import QUICK

Corpus = Callable[[int, int], Path]


def translate(model: Path, corpus: Path, out: Path, *flags: str) -> int:
    words = ["translate", str(model), *QUICK, "--shards", str(corpus), "--out", str(out), *flags]
    return main(words)


def written(out: Path) -> dict[str, tuple[int, int]]:
    """Each translated shard with the number of its file and the time of its last change."""
    files = [path for path in out.iterdir() if path.suffix == ".txt"]
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


def test_a_second_run_does_what_is_left(
    model: Path, corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shards, out = corpus(4, 9), tmp_path / "out"
    assert translate(model, shards, out, "--json") == 0
    first = json.loads(capsys.readouterr().out)
    assert (first["shards"], first["translated"], first["lines"]) == (4, 4, 36)
    before = written(out)
    assert translate(model, shards, out) == 0
    assert written(out) == before
    assert "4 of 4 shards were done before" in capsys.readouterr().err
    content = (out / "part-02.txt").read_bytes()
    (out / "part-02.txt").unlink()
    (shards / "part-09.txt").write_text("abc\n", encoding="utf-8")
    assert translate(model, shards, out, "--report", str(tmp_path / "report.json")) == 0
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert (report["translated"], report["done_before"], report["rows"]) == (2, 3, 10)
    after = written(out)
    assert {name: after[name] for name in before if name != "part-02.txt"} == {
        name: place for name, place in before.items() if name != "part-02.txt"
    }
    assert (out / "part-02.txt").read_bytes() == content
    assert sorted(os.listdir(out)) == [MANIFEST, *sorted(after)]


def test_other_settings_are_refused(
    model: Path, corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shards, out = corpus(1, 2), tmp_path / "out"
    assert translate(model, shards, out) == 0
    before = (out / MANIFEST).read_bytes()
    assert translate(model, shards, out, "--scores") == 2
    assert "with other settings: scores was false and is true" in capsys.readouterr().err
    assert translate(model, shards, out, "--precision", "int8") == 2
    assert 'precision was "auto" and is "int8"' in capsys.readouterr().err
    (model / "card.md").write_text("Another model.", encoding="utf-8")
    try:
        assert translate(model, shards, out) == 2
    finally:
        (model / "card.md").unlink()
    assert "models_sha256" in capsys.readouterr().err
    assert (out / MANIFEST).read_bytes() == before
    assert translate(model, shards, out, "--batch-tokens", "100") == 0


def test_changed_files_fail_alone(
    model: Path, corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shards, out = corpus(3, 2), tmp_path / "out"
    assert translate(model, shards, out) == 0
    (shards / "part-00.txt").write_text("abc\n", encoding="utf-8")
    (out / "part-01.txt").write_text("my own words\n", encoding="utf-8")
    assert translate(model, shards, out) == 1
    error = capsys.readouterr().err
    assert "failed: part-00.txt: The shard was changed after it was translated" in error
    assert "part-01.txt: The translated shard was changed after it was written" in error
    assert (out / "part-01.txt").read_text(encoding="utf-8") == "my own words\n"
    for name in ("part-00.txt", "part-01.txt"):
        (out / name).unlink()
    assert translate(model, shards, out) == 0


def test_bad_shards_fail_alone_and_are_tried_again(
    model: Path, corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shards, out = corpus(2, 3), tmp_path / "out"
    bad = {
        "latin.txt": (b"abc\nf\xfcr\n", "Line 2 is not UTF-8"),
        "cut.txt.gz": (b"\x1f\x8b\x08\x00\x00\x00\x00\x00", "Cannot be read past line 0"),
        "false.txt.gz": (b"", "Named .gz but not compressed"),
        "names.tsv": (b"a\tb\n", "There is no column 'text'"),
        "cut.parquet": (b"PAR1\x00\x00", "Cannot be read as Parquet"),
    }
    for name, (content, _) in bad.items():
        (shards / name).write_bytes(content)
    assert translate(model, shards, out) == 1
    error = capsys.readouterr().err
    assert "2 shards translated, 0 done before, 5 failed" in error
    for name, (_, words) in bad.items():
        lines = [line for line in error.splitlines() if line.startswith(f"failed: {name}: ")]
        assert len(lines) == 1
        assert words in lines[0]
    assert sorted(written(out)) == ["part-00.txt", "part-01.txt"]
    (shards / "latin.txt").write_bytes(b"abc\nfed\n")
    assert translate(model, shards, out) == 1
    assert "1 shards translated, 2 done before, 4 failed" in capsys.readouterr().err


def test_a_killed_run_is_continued(model: Path, corpus: Corpus, tmp_path: Path) -> None:
    shards, out = corpus(20, 60), tmp_path / "out"
    command = [sys.executable, "-m", "heedful", "translate", str(model), *QUICK]
    process = subprocess.Popen(
        [*command, "--shards", str(shards), "--out", str(out)],
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    until = time.monotonic() + 300
    while not out.exists() or len(written(out)) < 3:
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = written(out)
    assert len(before) < 20
    lost = min(before)
    del before[lost]
    (out / lost).unlink()
    # Where it was killed between a shard and its record the shard is compared, and stays.
    assert translate(model, shards, out) == 0
    after = written(out)
    assert len(after) == 20
    assert {name: after[name] for name in before} == before
    assert translate(model, shards, tmp_path / "undisturbed") == 0
    for name in after:
        assert (out / name).read_bytes() == (tmp_path / "undisturbed" / name).read_bytes()
    assert sorted(os.listdir(out)) == [MANIFEST, *sorted(after)]


def test_two_runs_do_not_share_a_folder(
    model: Path, corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with TranslatedFolder(tmp_path / "out").locked():
        assert translate(model, corpus(1, 1), tmp_path / "out") == 1
    assert "Another run translates shards into this folder" in capsys.readouterr().err


class Stub:
    """Stands for a translator that writes the same word for every text."""

    def __init__(
        self, word: str, failures: list[Exception | None], wait: Callable[[], Any]
    ) -> None:
        self.word, self.failures, self.wait = word, failures, wait
        self.calls = 0

    def translate(self, texts: list[str], first_line: int, warn: Any) -> list[str]:
        self.calls += 1
        self.wait()
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure
        return [self.word for _ in texts]

    def counts(self) -> dict[str, int]:
        return {}


def worker(out: Path, stub: Stub | None = None, *, retries: int = 2) -> tuple[ShardWorker, Stub]:
    stub = stub or Stub("x", [], lambda: None)
    job = ShardJob(out, TableColumns(), lambda: stub, retries, 1, out)
    return ShardWorker(job), stub


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text("a\nb\n", encoding="utf-8")
    return tmp_path / "a.txt"


def test_of_two_workers_one_publishes(tmp_path: Path, shard: Path) -> None:
    """Their processors may round otherwise; the file and its record are of the same worker."""
    barrier = threading.Barrier(2)
    outcomes = []
    with TranslatedFolder(tmp_path / "out").locked():
        pairs = [worker(tmp_path / "out", Stub(word, [], barrier.wait)) for word in "xy"]
        threads = [
            threading.Thread(target=lambda each=each: outcomes.append(each.translate(shard)))
            for each, _ in pairs
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [stub.calls for _, stub in pairs] == [1, 1]
        assert outcomes[0].record == outcomes[1].record is not None
        assert TranslatedFolder(tmp_path / "out").is_whole("a.txt", outcomes[0].record)
        third, stub = worker(tmp_path / "out")
        assert third.translate(shard).record == outcomes[0].record
        assert stub.calls == 0


def test_failures_of_the_machine_are_tried_again(
    tmp_path: Path, shard: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of a try that failed are taken from the progress again."""
    monkeypatch.setattr("heedful.apps.shards.shard_forms.CHUNK", 1)
    failures = [None, OSError("the disk is away"), MemoryError("no room"), None, None]
    with TranslatedFolder(tmp_path / "out").locked():
        first, stub = worker(tmp_path / "out", Stub("x", failures, lambda: None))
        seen: list[int] = []
        assert first.translate(shard, seen.append).record is not None
        assert (stub.calls, seen) == (5, [1, -1, 0, 1, 1])


def test_a_shard_that_always_fails_is_given_up(tmp_path: Path, shard: Path) -> None:
    with TranslatedFolder(tmp_path / "out").locked():
        failures = [OSError("the disk is away") for _ in range(9)]
        first, stub = worker(tmp_path / "out", Stub("x", failures, lambda: None), retries=1)
        outcome = first.translate(shard)
        assert outcome.record is None
        assert "OSError: the disk is away (tried 2 times)" in outcome.reason
        assert stub.calls == 2
        assert not (tmp_path / "out" / "a.txt").exists()


def test_workers_that_ended_count_as_tries(tmp_path: Path, shard: Path) -> None:
    folder = TranslatedFolder(tmp_path / "out")
    with folder.locked():
        assert [folder.attempt("a.txt") for _ in range(3)] == [1, 2, 3]
        first, stub = worker(tmp_path / "out", retries=2)
        assert "the worker ended each time" in first.translate(shard).reason
        assert stub.calls == 0


def test_a_file_of_somebody_else_is_kept(
    model: Path,
    corpus: Corpus,
    tmp_path: Path,
    shard: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("heedful.apps.shards.shard_records._OTHER_WORKER_SECONDS", 0.1)
    out = tmp_path / "out"
    out.mkdir()
    (out / "part-01.txt").write_text("mine\n", encoding="utf-8")
    assert translate(model, corpus(2, 1), out) == 2
    assert "The folder has a file of this name" in capsys.readouterr().err
    (out / "a.txt").write_text("mine\n", encoding="utf-8")
    with TranslatedFolder(out).locked():
        assert "Another file already has the name" in worker(out)[0].translate(shard).reason
    assert (out / "a.txt").read_text(encoding="utf-8") == "mine\n"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--shards", "IN", "-i", "x"], "--shards and --input exclude each other"),
        (["--shards", "IN", "--out", "o", "--stream"], "--shards and --stream exclude"),
        (["--shards", "IN", "--out", "o", "--on-doubt", "fail"], "--on-doubt fail exclude"),
        (["--out", "o"], "--out needs --shards"),
        (["--engine", "ray"], "--engine needs --shards"),
        (["--shards", "IN"], "--shards needs a folder for the translations"),
        (["--shards", "IN", "--out", "o", "--actors", "2"], "--actors needs --engine ray"),
        (["--shards", "IN", "--out", "o", "--retries", "-1"], "--retries -1: it is at least 0"),
        (["--shards", "IN", "--out", "none/o"], "No folder can be made here"),
        (["--shards", "IN", "--out", "IN"], "under the same names"),
        (["--shards", "IN", "IN/../other", "--out", "o"], "Two shards have the name part-00.txt"),
        (
            ["--shards", "IN/*.nothing", "--out", "o"],
            "No file has this name or matches this pattern",
        ),
        (["--shards", "notes.pdf", "--out", "o"], "does not say how the shard is read"),
        (["--shards", "empty", "--out", "o"], "This folder holds no files"),
    ],
)
def test_what_does_not_fit_is_refused(
    model: Path,
    corpus: Corpus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    words: str,
) -> None:
    corpus(1, 1).rename(tmp_path / "IN")
    for name in ("other/part-00.txt", "notes.pdf", "empty/.hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    assert main(["translate", str(model), *QUICK, *flags]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_patterns_and_files_name_shards(
    model: Path, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = corpus(12, 1)
    monkeypatch.chdir(tmp_path)
    names = ["corpus/part-0[3-5].txt", "corpus/part-11.txt"]
    assert main(["translate", str(model), *QUICK, "--out", "o", "--shards", *names]) == 0
    assert sorted(written(tmp_path / "o")) == [f"part-{n}.txt" for n in ("03", "04", "05", "11")]
    assert len(list(shards.iterdir())) == 12


@pytest.mark.parametrize("content", ["{", "[]", '{"settings": {}, "shards": {"part-00.txt": {}}}'])
def test_a_damaged_record_is_named(
    model: Path, corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    shards, out = corpus(1, 1), tmp_path / "out"
    assert translate(model, shards, out) == 0
    stored = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
    text = content.replace('"settings": {}', f'"settings": {json.dumps(stored["settings"])}')
    (out / MANIFEST).write_text(text, encoding="utf-8")
    assert translate(model, shards, out) == 2
    assert "This record of translated shards is damaged" in capsys.readouterr().err
