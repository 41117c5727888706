"""`heedful compare` and `heedful sweep`, through the real command line."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import heedful
from heedful.apps.studio.workspace import WorkspaceDirectory
from heedful.cli.main import main
from heedful.config import dump_toml

TIMED = ("seconds", "tokens_per_second", "peak_memory_bytes")


@pytest.fixture(scope="module")
def config(settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("configs") / "small.toml"
    path.write_text(dump_toml(settings), encoding="utf-8")
    return path


def words(config: Path, out: Path, seeds: int) -> list[str]:
    over = ["--over", "model.positions=rotary,none", "--seeds", str(seeds)]
    return ["sweep", str(config), *over, "--out", str(out)]


@pytest.fixture(scope="module")
def out(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished sweep of two values with two seeds."""
    folder = tmp_path_factory.mktemp("out") / "positions"
    assert main(words(config, folder, 2)) == 0
    return folder


def table_of(out: Path) -> dict[str, Any]:
    table: dict[str, Any] = json.loads((out / "table.json").read_text(encoding="utf-8"))
    return table


def test_the_table_holds_scores_and_costs(out: Path) -> None:
    table = table_of(out)
    assert table["finished"]
    assert table["differences"] == {
        "model.positions": {"model.positions=rotary": "rotary", "model.positions=none": "none"}
    }
    for each in table["variants"]:
        values = [run["scores"]["loss"] for run in table["runs"] if run["variant"] == each["name"]]
        score = each["scores"]["loss"]
        assert score["values"] == values
        assert values[0] != values[1]
        assert score["mean"] == pytest.approx(statistics.fmean(values))
        half = 12.7062 * statistics.stdev(values) / 2**0.5
        assert score["high"] - score["mean"] == pytest.approx(half, rel=1e-4)
        assert each["steps"] == 40
        assert each["flops"] == 40 * each["flops_per_update"]
        # Forward and backward: 6 operations a weight of a matrix and token, and attention.
        matrices = 4 * 8 * 8 + 2 * 8 * 8
        pieces = each["parameters"]
        assert 6 * 128 * matrices < each["flops_per_update"] < 6 * 128 * (pieces + 16 * 8 * 2)
        assert each["seconds"] > 0 < each["tokens_per_second"]
        assert each["peak_memory_bytes"] > 1e7
    markdown = (out / "table.md").read_text(encoding="utf-8")
    assert "model.positions=rotary" in markdown
    assert "±" in markdown


def test_the_page_needs_nothing_else(out: Path) -> None:
    page = (out / "page.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in page
    assert 'src="http' not in page
    assert 'href="http' not in page
    assert page.count("data-chart=") == 1 + 4 + 1  # a ranking, a curve for each axis, training
    assert "model.positions=none" in page


def test_runs_are_ordinary_run_directories(out: Path) -> None:
    run = out / "runs" / "model.positions=rotary" / "seed-2"
    place = WorkspaceDirectory("run", run)
    assert place.kind() == "causal_lm"
    assert place.log is not None
    assert len(place.log.curve("loss", "validation")[0]) == 4
    assert heedful.load(run).generate(["rot"], max_length=3)[0].tokens


def test_nothing_is_done_twice(out: Path, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/*/metrics.jsonl")}
    assert len(records) == 4
    assert main(["compare", "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["finished"]
    assert main(words(config, out, 2)) == 0
    assert {path: path.stat().st_mtime_ns for path in records} == records
    assert main([*words(config, out, 2), "--max-steps", "50"]) == 2
    assert "begun with another max_steps" in capsys.readouterr().err


def started(*arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "heedful", *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)


def wait_for_updates(run: Path, process: subprocess.Popen[str]) -> None:
    """Wait until a run has made some updates."""
    record = run / "metrics.jsonl"
    while not record.exists() or record.read_bytes().count(b"\n") < 15:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)


def test_a_killed_comparison_ends_as_one_that_was_not(
    out: Path, config: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "again"
    first, second = (folder / "runs" / f"model.positions={each}" / "seed-1"
                     for each in ("rotary", "none"))  # fmt: skip
    process = started(*words(config, folder, 1))
    wait_for_updates(first, process)
    process.send_signal(signal.SIGINT)
    said = process.communicate()[1]
    assert process.returncode == 1, said
    assert f"heedful compare --out {folder}" in said
    process = started("compare", "--out", str(folder))
    wait_for_updates(second, process)
    process.kill()
    process.communicate()
    finished = (first / "metrics.jsonl").stat().st_mtime_ns
    assert main(["compare", "--out", str(folder)]) == 0
    assert (first / "metrics.jsonl").stat().st_mtime_ns == finished
    whole = {(run["variant"], run["seed"]): run for run in table_of(out)["runs"]}
    resumed = table_of(folder)["runs"]
    assert len(resumed) == 2
    for run in resumed:
        expected = whole[run["variant"], run["seed"]]
        assert {k: v for k, v in run.items() if k not in TIMED} == {
            k: v for k, v in expected.items() if k not in TIMED
        }


def test_operations_are_a_budget_and_a_failure_no_end(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    """A run whose processor does not exist fails; the others are trained and ranked."""
    flops = 3.3e6
    result = heedful.compare(
        {"wide": {**settings, "model": {**settings["model"], "feedforward": 64}},
         "broken": {**settings, "device": "cuda:77"}},
        out=tmp_path / "out", seeds=1, max_flops=flops,
    )  # fmt: skip
    wide, broken = result.plain()["variants"]
    assert wide["steps"] == round(flops / wide["flops_per_update"]) > 1
    assert broken["finished_runs"] == 0
    assert not result.finished
    (problem,) = [run.problem for run in result.runs if run.problem]
    assert "cuda" in problem
    assert broken["flops_per_update"] < wide["flops_per_update"]


def test_bad_requests_are_sentences(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = [
        (["compare", "--out", str(tmp_path / "none")], "no comparison to go on with"),
        (["compare", "--out", str(tmp_path), "--seeds", "2"], "Name the configurations"),
        (["compare", str(config), str(config), "--out", str(tmp_path)], "are called 'small'"),
        (["sweep", str(config), "--over", "model.width", "--out", str(tmp_path)], "like model"),
        (["sweep", str(config), "--over", "model.width=8,x", "--out", str(tmp_path)], "width"),
        (["sweep", str(config), "--over", "tokenizer.kind=bpe,characters", "--out",
          str(tmp_path)], "tokenizers differ"),
        (["compare", str(config), "--out", str(tmp_path / "b"), "--max-flops", "1"],
         "larger budget"),
    ]  # fmt: skip
    for arguments, message in cases:
        assert main(arguments) == 2, arguments
        said = capsys.readouterr().err
        assert message in said
        assert "Traceback" not in said
