"""What people get wrong ends in one paragraph, a status, and nothing half done."""

from __future__ import annotations

import errno
import gzip
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from heedful.cli.main import as_user_error, exit_status
from heedful.errors import RunError

HEEDFUL = [sys.executable, "-m", "heedful"]
TINY = (
    "--tokenizer.kind=characters",
    "--model.width=16",
    "--model.encoder-layers=1",
    "--model.decoder-layers=1",
    "--model.num-heads=2",
    "--model.feedforward=32",
    "--max-steps=2",
)


def assert_refused(done, *fragments: object, status: int = 2) -> None:
    """One paragraph at the end of standard error that names what it should, and no traceback."""
    assert done.status == status, done.err
    assert "Traceback" not in done.err
    paragraph = done.err.rstrip("\n").split("\n")[-1]
    for fragment in fragments:
        assert str(fragment) in paragraph
    assert paragraph.endswith((".", "?", "!", "--help")), paragraph


# Commands and flags


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        (["trian"], ["'trian'", "Did you mean 'train'?"]),
        (["translate"], ["MODEL is missing", "heedful translate --help"]),
        (["translate", "m", "- I love cats."], ["'- I love cats.'", "Put -- before"]),
        (["translate", "m", "two", "words"], ["'words'", "quotes"]),
        (["train", "a.en", "a.de"], ["'a.de'", "Files follow flags"]),
        (["train", "r", "--train"], ["nothing to train on", "--train SOURCE_FILE TARGET_FILE"]),
        (["translate", "m", "--bem", "4"], ["--bem", "Did you mean --beam?"]),
        (["translate", "m", "--beam", "four"], ["--beam", "four", "int"]),
        (["translate", "m", "--beam", "0"], ["beam", "greater than 0"]),
        (["translate", "m", "--n-best", "9"], ["n_best = 9", "beam = 4"]),
        (["translate", "m", "--precision", "int4"], ["--precision", "int4", "int8"]),
        (["translate", "m", "n"], ["n"]),
        (
            ["train", "r", "--train", "a", "b", "--model.widht", "3"],
            ["Did you mean --model.width?"],
        ),
        (["train", "r", "--train", "a", "b", "--model.width", "-3"], ["model.width", "-3"]),
        (["train", "r", "--train", "a", "b", "--preset", "tniy"], ["Did you mean 'tiny'?"]),
        (["train", "r", "--train", "a"], ["--train", "'a' has no partner"]),
        (["train", "r", "--train", "a.xlsx"], ["--train a.xlsx", "as CSV in UTF-8"]),
        (["train", "r", "--train", "m.tmx.gz"], ["m.tmx.gz", "heedful data clean FILE"]),
        (["train", "r"], ["nothing to train on", "--train"]),
        (["train", "r", "--resume"], ["no run to resume", "r"]),
        (["train", "r", "--weights", "2"], ["--weights"]),
        (["train", "r", "--train", "a", "b", "--weights", "2", "3"], ["--weights", "2", "1"]),
        (["train", "r", "--task-prefixes", "say: "], ["--task-prefixes"]),
        (
            ["train", "r", "--train", "a.tsv", "--valid", "b.tsv", "c.tsv", "--task-prefixes", "s"],
            ["--task-prefixes", "1", "2 validation corpora"],
        ),
        (
            ["train", "r", "--task", "tag", "--train", "a.conll", "--task-prefixes", "say: "],
            ["task_prefix is for pairs", "tag"],
        ),
        (["info", "nothing-here"], ["nothing-here", "tiny"]),
        (["info", "tiny", "--beam", "0"], ["at least 1"]),
        (["evaluate", "m", "--reference", "missing"], ["missing", "No such file"]),
        (["presets", "--report", "no/such/folder/report.json"], ["no/such/folder"]),
        (["demo", "--from", "xx", "--out", "d"], ["xx"]),
    ],
)
def test_wrong_requests(run, tmp_path: Path, monkeypatch, words, fragments) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(run(*words), *fragments)


# Settings files


@pytest.mark.parametrize(
    ("toml", "fragments"),
    [
        ("[model]\nwidht = 3\n", ["model.widht", "Did you mean 'width'?"]),
        ("[modle]\nwidth = 3\n", ["modle", "Did you mean 'model'?"]),
        ("[model]\nwidth = 'wide'\n", ["model.width", "wide"]),
        ("[model]\nwidth = 3.5\n", ["model.width", "3.5"]),
        ("max_steps = true\n", ["max_steps"]),
        ("seed = -1\n", ["seed", "-1"]),
        ("[model\n", ["TOML"]),
        ("[validation]\nchoose_by = 'bleu'\nmetrics = ['chrf']\n", ["choose_by", "metrics"]),
        ("[[data.train]]\nsource = 'only'\n", ["data.train", "source and target"]),
    ],
)
def test_wrong_settings_files(run, tmp_path: Path, pairs, toml: str, fragments) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(toml, encoding="utf-8")
    flags = [] if "data.train" in toml else ["--train", *pairs]
    done = run("train", tmp_path / "run", "--config", file, *flags)
    assert_refused(done, file, *fragments)
    assert not (tmp_path / "run" / "config.toml").exists()


def test_a_settings_file_that_is_missing(run, tmp_path: Path) -> None:
    done = run("train", tmp_path / "run", "--config", tmp_path / "no.toml")
    assert_refused(done, tmp_path / "no.toml", "No such")


# Corpora


@pytest.mark.parametrize(
    ("content", "fragments"),
    [
        (b"a\nb\n", ["60", "2"]),
        (b"", [""]),
        (b"a\n" * 59 + b"\xff\xfe\n", ["60", "UTF-8"]),
        (b"a\n" * 9 + b"b\0c\n" + b"a\n" * 50, ["10", "NUL"]),
        ("a\n".encode("utf-16"), ["UTF-16"]),
        (gzip.compress(b"a\n" * 60, mtime=0)[:-9], [""]),
    ],
    ids=["misaligned", "empty", "not-utf-8", "nul", "utf-16", "truncated-gzip"],
)
def test_wrong_corpora(run, tmp_path: Path, pairs, content: bytes, fragments) -> None:
    target = tmp_path / "bad.txt"
    target.write_bytes(content)
    done = run("train", tmp_path / "run", *TINY, "--train", pairs[0], target)
    assert_refused(done, target, *fragments)
    assert not (tmp_path / "run" / "model").exists()


@pytest.mark.parametrize(
    ("name", "content", "fragments"),
    [
        ("bad.tsv", "a\tb\na b\n", [":2", "tab"]),
        ("bad.jsonl", '{"source": "a", "target": "b"}\n{"source": "a"\n', [":2", "JSON"]),
        ("bad.jsonl", '{"source": "a", "traget": "b"}\n', [":1", "target"]),
    ],
)
def test_wrong_files_of_pairs(run, tmp_path: Path, name: str, content: str, fragments) -> None:
    file = tmp_path / name
    file.write_text(content, encoding="utf-8")
    done = run("train", tmp_path / "run", *TINY, "--train", file)
    assert_refused(done, file, *fragments)


def test_a_missing_corpus(run, tmp_path: Path, pairs) -> None:
    missing = tmp_path / "missing"
    done = run("train", tmp_path / "run", *TINY, "--train", pairs[0], missing)
    assert_refused(done, missing, "No such file")


def test_a_run_is_not_overwritten(run, tmp_path: Path, pairs) -> None:
    folder = tmp_path / "run"
    first = run("train", folder, *TINY, "--train", *pairs, "--json")
    assert first.status == 0, first.err
    assert json.loads(first.lines[0])["steps"] == 2
    weights = (folder / "model" / "model.safetensors").read_bytes()
    assert_refused(run("train", folder, *TINY, "--train", *pairs), folder, "--resume")
    assert (folder / "model" / "model.safetensors").read_bytes() == weights
    changed = run("train", folder, "--resume", "--model.width", "32")
    assert_refused(changed, "model.width", "16")
    more = run("train", folder, "--resume", "--max-steps", "3", "--json")
    assert json.loads(more.lines[0])["steps"] == 3


# Text


@pytest.mark.parametrize(
    ("text", "fragments"),
    [
        (b"abc\nd\xff\n", ["Line 2", "UTF-8", "0xff"]),
        (b"abc\n\nd\0e\n", ["Line 3", "NUL"]),
        ("abc\n".encode("utf-16"), ["UTF-16"]),
    ],
)
def test_wrong_text(run, model: Path, tmp_path: Path, text: bytes, fragments) -> None:
    out, file = tmp_path / "out.txt", tmp_path / "in.txt"
    file.write_bytes(text)
    out.write_text("what was there\n", encoding="utf-8")
    short = ("--beam", "1", "--max-length", "2")
    done = run("translate", model, *short, "-o", out, stdin=text)
    assert_refused(done, "standard input", *fragments)
    assert_refused(run("translate", model, *short, "-i", file, "-o", out), file, *fragments)
    assert out.read_text(encoding="utf-8") == "what was there\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt"]


def test_lines_out_of_step(run, model: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("abc\n", encoding="utf-8")
    two.write_text("abc\ndef\n", encoding="utf-8")
    assert_refused(run("score", model, "--source", one, "--target", two), one, two, "1", "2")
    done = run("evaluate", model, "--source", one, "--reference", two)
    assert_refused(done, one, "1", "2")
    assert_refused(run("evaluate", one, "--reference", two), one, "1", "2")


# Models


def test_no_model(run, tmp_path: Path) -> None:
    assert_refused(run("translate", tmp_path / "none", stdin=b"a\n"), tmp_path / "none", "No such")
    assert_refused(run("translate", tmp_path, stdin=b"a\n"), tmp_path, "neither")
    assert_refused(run("evaluate", tmp_path / "none", "--reference", __file__), tmp_path / "none")


def test_a_model_of_a_newer_schema(run, model: Path, tmp_path: Path) -> None:
    newer = shutil.copytree(model, tmp_path / "newer")
    config = json.loads((newer / "config.json").read_text(encoding="utf-8"))
    (newer / "config.json").write_text(json.dumps(config | {"schema_version": 99}))
    assert_refused(run("translate", newer, stdin=b"a\n"), newer, "99", "newer Heedful")
    assert_refused(run("info", newer), newer, "99")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_a_damaged_model(run, model: Path, tmp_path: Path, name: str, damage: str) -> None:
    bad = shutil.copytree(model, tmp_path / "bad")
    if damage == "missing":
        (bad / name).unlink()
    else:
        (bad / name).write_bytes((bad / name).read_bytes()[:100])
    assert_refused(run("translate", bad, stdin=b"a\n"), bad)


def test_an_ensemble_that_does_not_fit(run, model: Path, tmp_path: Path, pairs) -> None:
    assert run("train", tmp_path / "run", *TINY, "--train", *pairs).status == 0
    done = run("translate", model, "--ensemble", tmp_path / "run", stdin=b"a\n")
    assert_refused(done, tmp_path / "run", "tokenizers")


# The system


def limited(*words: object, size: int) -> subprocess.CompletedProcess[str]:
    """Run where no file may grow past a size: a disk that is full."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return subprocess.run(
        [*HEEDFUL, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limit,
    )


def test_a_full_disk_leaves_the_old_file(model: Path, tmp_path: Path) -> None:
    text, out = tmp_path / "in.txt", tmp_path / "out.txt"
    text.write_text("abcdefgh\n" * 400, encoding="utf-8")
    out.write_text("what was there\n", encoding="utf-8")
    flags = ("--beam", "1", "--min-length", "8", "--max-length", "8")
    done = limited("translate", model, *flags, "-i", text, "-o", out, size=1000)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert str(out) in done.stderr.splitlines()[-1]
    assert out.read_text(encoding="utf-8") == "what was there\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_full_standard_output(model: Path) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [*HEEDFUL, "presets", "--json"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert "No space left" in done.stderr


def test_a_reader_that_goes_away(model: Path, tmp_path: Path) -> None:
    text = tmp_path / "in.txt"
    text.write_text("abc\n" * 9000, encoding="utf-8")
    command = [
        *HEEDFUL,
        "translate",
        str(model),
        "--beam",
        "1",
        "--max-length",
        "1",
        "-i",
        str(text),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read().decode()
    assert process.returncode == 1
    assert "Traceback" not in err
    assert "Broken" not in err


@pytest.mark.parametrize(
    ("error", "status", "fragments"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "a/file"), 1, ["a/file", "No space"]),
        (
            PermissionError(errno.EACCES, "Permission denied", "a/file"),
            2,
            ["a/file", "permissions"],
        ),
        (OSError(errno.EROFS, "Read-only file system", "a/file"), 2, ["a/file", "Read-only"]),
        (FileNotFoundError(errno.ENOENT, "No such file", "a/file"), 2, ["a/file"]),
        (OSError(errno.EIO, "Input/output error", "a/file"), 1, ["a/file", "Input/output"]),
        (MemoryError(), 1, ["memory", "--batch-tokens"]),
        (RuntimeError("DefaultCPUAllocator: not enough memory: tried to"), 1, ["memory"]),
        (KeyboardInterrupt(), 130, ["Interrupted"]),
        (TypeError("a fault\nof ours"), 1, ["TypeError: a fault of ours", "report"]),
    ],
)
def test_what_goes_wrong_elsewhere(capsys, monkeypatch, error, status: int, fragments) -> None:
    monkeypatch.delenv("HEEDFUL_DEBUG", raising=False)
    assert exit_status(error) == status
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    for fragment in fragments:
        assert fragment in err


def test_tracebacks_are_for_those_who_ask(capsys, monkeypatch) -> None:
    monkeypatch.setenv("HEEDFUL_DEBUG", "1")
    with pytest.raises(TypeError) as raised:
        raise TypeError("a fault")
    assert exit_status(raised.value) == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_invariant_of_ours_is_no_error_of_theirs() -> None:
    assert as_user_error(AssertionError("x")) is None
    assert isinstance(as_user_error(MemoryError()), RunError)


def test_a_folder_that_may_not_be_written(run, model: Path, tmp_path: Path, monkeypatch) -> None:
    """Asked of the system before a long run begins; who is root may write anywhere."""
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    done = run("translate", model, "-o", tmp_path / "out.txt", stdin=b"a\n")
    assert_refused(done, tmp_path, "cannot be written")
    assert_refused(run("presets", "--report", tmp_path / "report.json"), tmp_path)
    assert_refused(run("translate", model, "-o", tmp_path, stdin=b"a\n"), tmp_path, "directory")
