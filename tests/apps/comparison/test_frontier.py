"""The frontier: figures of real processes, and verdicts on figures made by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.apps.comparison.frontier_results import Frontier
from heedful.apps.comparison.frontier_rounds import Grid, MeasuredTask, Measurements, Setting
from heedful.cli.main import main

TEXTS = tuple(f"sentence number {i} of a short test" for i in range(40))
GOOD = TEXTS
BAD = tuple(text.replace("short", "long") for text in TEXTS)
TASK = MeasuredTask(
    model="en-de",
    model_digest="",
    shortlist=None,
    texts=TEXTS,
    references=TEXTS,
    timed=40,
    alone=2,
    machine={"processor": "made up", "cores": 2, "system": "none"},
)
EXACT = Setting(precision="fp32", beam=4, shortlist=False, batch_tokens=4096, threads=1)
FAST = replace(EXACT, precision="int8")


def record(
    seconds: float, *, wait: float = 0.1, mb: int = 100, texts: Any = GOOD
) -> dict[str, Any]:
    return {
        "seconds": seconds,
        "alone": [wait, wait],
        "peak_memory_bytes": mb * 10**6,
        "translations": list(texts),
        "load": 1.0,
    }


def frontier(**figures: list[dict[str, Any]]) -> Frontier:
    """A frontier of settings by name."""
    known = {"exact": EXACT, "fast": FAST, "wide": replace(EXACT, threads=2)}
    records = {
        (known[name], number): each
        for name, rounds in figures.items()
        for number, each in enumerate(rounds)
    }
    return Frontier(Measurements(TASK, records), [known[name] for name in figures])


def test_surely_faster_and_no_worse_in_anything() -> None:
    slow, quick = [record(s) for s in (4, 5, 6)], [record(s) for s in (1, 2, 5)]
    assert frontier(exact=slow, fast=quick).dominated == {EXACT: FAST}
    assert not frontier(
        exact=slow, fast=[record(1)] * 2 + [record(7)]
    ).dominated  # not in all rounds
    assert not frontier(exact=slow[:2], fast=quick[:2]).dominated  # two rounds say little
    assert not frontier(exact=slow, fast=[record(1, mb=110)] * 3).dominated
    assert not frontier(exact=slow, fast=[record(1, wait=0.2)] * 3).dominated
    assert not frontier(exact=slow, fast=[record(1, texts=BAD)] * 3).dominated
    assert frontier(exact=slow, fast=[record(1, mb=101)] * 3).dominated  # noise of allocators
    wide = replace(EXACT, threads=2)
    assert not frontier(exact=slow, wide=quick).dominated  # it takes more of the machine
    assert frontier(wide=slow, exact=quick).dominated == {wide: EXACT}


def test_better_in_memory_or_quality_alone() -> None:
    same = [record(1), record(1)]
    assert frontier(exact=same, fast=[record(1, mb=80)] * 2).dominated == {EXACT: FAST}
    worse = [record(1, texts=BAD)] * 2
    assert frontier(exact=worse, fast=same).dominated == {EXACT: FAST}
    assert not frontier(exact=same, fast=same).dominated


def test_figures_and_recommendations() -> None:
    found = frontier(
        exact=[record(4, wait=0.3, mb=90), record(8, wait=0.1), record(2, wait=0.2)],
        fast=[record(1, texts=BAD), record(1), record(1)],
    )
    facts = found.plain()
    fast, exact = facts["settings"]
    assert exact["sentences_per_second"] == {"median": 10, "low": 5, "high": 20}
    assert exact["alone_seconds"]["p50"] == pytest.approx(0.2)
    assert exact["alone_seconds"]["p95"] == pytest.approx(0.3)
    assert exact["peak_memory_bytes"] == 100e6
    assert exact["scores"]["bleu"]["score"] == pytest.approx(100)
    assert fast["scores"]["bleu"]["difference"]["score"] < -10
    assert fast["scores"]["bleu"]["p_value"] < 0.01
    assert exact["scores"]["bleu"]["p_value"] == 1
    assert found.recommended["good translations, many sentences"] == EXACT
    assert found.recommended["fastest"] == FAST
    better = frontier(exact=[record(1, texts=BAD)] * 2, fast=[record(2)] * 2)
    assert better.recommended["good translations, many sentences"] == FAST
    assert better.recommended["fastest"] == EXACT
    command = facts["recommended"]["fastest"]["command"]
    assert command == (
        "OMP_NUM_THREADS=1 heedful translate en-de --precision int8 --beam 4 --batch-tokens 4096"
    )


def test_what_is_missing_is_said() -> None:
    choices = Grid(precisions=["int8", "fp32"], beams=[1], batch_tokens=[9], threads=[1]).settings()
    assert [each.precision for each in choices] == ["fp32", "int8"]
    found = Frontier(Measurements(TASK, {(choices[1], 0): {"problem": "no such"}}), choices)
    assert found.problems == {choices[1]: "no such"}
    assert found.unmeasured == choices[:1]
    assert not found.points


figures = st.tuples(st.floats(0.5, 2), st.floats(0.5, 2), st.sampled_from((80, 90, 100, 101)))


@settings(max_examples=40)
@given(a=st.lists(figures, min_size=2, max_size=2), b=st.lists(figures, min_size=2, max_size=2))
def test_of_two_settings_one_remains(a: list[Any], b: list[Any]) -> None:
    rounds = [[record(s, wait=w, mb=mb) for s, w, mb in each] for each in (a, b)]
    found = frontier(exact=rounds[0], fast=rounds[1])
    assert len(found.dominated) < 2
    for worse, better in found.dominated.items():
        assert found.by_setting[better].rate >= found.by_setting[worse].rate


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("a.en").write_text("I love cats.\n\nA dog runs.\nWhere are you?\n")
    Path("a.de").write_text("Ich liebe Katzen.\n\nEin Hund rennt.\nWo bist du?\n")
    return tmp_path


FILES = ("--source", "a.en", "--reference", "a.de")
GRID = ("--precisions", "fp32", "int8", "--beams", "2", "--batches", "512", "--threads", "1")


def test_measured_and_gone_on_with(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["frontier", "en-de", *FILES, *GRID, "--json"]
    assert main([*words, "--rounds", "1"]) == 0
    printed = capsys.readouterr()
    facts = json.loads(printed.out)
    assert {each["precision"] for each in facts["settings"]} == {"fp32", "int8"}
    assert facts["lines"] == 3  # the empty one is left out
    for each in facts["settings"]:
        assert each["rounds"] == 1
        assert 0 < each["alone_seconds"]["p50"] <= each["alone_seconds"]["p95"] < 10
        assert 50e6 < each["peak_memory_bytes"] < 3e9
        assert each["scores"]["bleu"]["score"] > 30
    out = corpus / "frontier"
    table, page = (out / "table.md").read_text(), (out / "page.html").read_text()
    assert "| fp32, beam 2, batch 512, 1 thread |" in table
    assert "heedful translate en-de --precision" in table
    assert 'src="http' not in page
    assert "sentences a second" in page
    assert "nobody's" not in page  # the legend names dominated settings
    assert '"dominated"' in page
    kept = (out / "measurements.jsonl").read_text()
    with (out / "measurements.jsonl").open("a") as stream:
        stream.write('{"setting": {"precis')  # a machine that died
    for _ in range(2):
        assert main([*words, "--rounds", "2"]) == 0
        again = json.loads(capsys.readouterr().out)
        assert [each["rounds"] for each in again["settings"]] == [2, 2]
        now = (out / "measurements.jsonl").read_text()
        assert now.startswith(kept)
        assert now.count('"seconds"') == 4
    (out / "task.json").write_text("{")
    assert main(words) == 2
    assert "task.json" in capsys.readouterr().err
    (out / "task.json").write_text("{}")
    Path("a.en").write_text("Others.\n\nA dog runs.\nWhere are you?\n")
    assert main(words) == 2
    assert "measurements here are of something else" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--shortlists", "yes"], "no shortlist"),
        (["--minutes", "0"], "--minutes: It must be positive"),
        (["--rounds", "-1"], "--rounds: It must be positive"),
        (["--minutes", "1e-12"], "time was over"),
    ],
)
def test_refusals(corpus: Path, capsys: pytest.CaptureFixture[str], words, message) -> None:
    assert main(["frontier", "en-de", *FILES, *GRID, *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_files_out_of_step(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.de").write_text("Ich liebe Katzen.\n")
    assert main(["frontier", "en-de", *FILES, *GRID]) == 2
    assert "a.en has 4 lines and a.de has 1" in capsys.readouterr().err


def test_a_writer_has_no_frontier(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["frontier", "english", *FILES, "--precisions", "fp32", *GRID[3:]]) == 2
    assert "translator" in capsys.readouterr().err
