from __future__ import annotations

import io
import itertools
import json
import time
from pathlib import Path

import pytest

from heedful.errors import RunError
from heedful.events import (
    Events,
    MetricsFile,
    Progress,
    Recorder,
    Sample,
    Terminal,
    Warning,
)


def test_every_sink_hears_everything() -> None:
    first, second = Recorder(), Recorder()
    events = Events([first]).also(second)
    events.warn("careful")
    events.metric(3, {"loss": 1.0})
    assert first.events == second.events
    assert first.texts(Warning) == ["careful"]
    assert first.metrics()[0].step == 3


def test_metrics_are_one_json_object_a_line(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    events = Events([file])
    events.metric(1, {"loss": 2.5, "lr": 1e-4})
    events.note("not for the file")
    events.metric(1, {"bleu": 3.0}, "validation")
    events.metric(2, {"loss": float("nan")})
    events.samples(2, [Sample("Hallo", "Hello", "Hullo")])
    events.samples(3, [])
    file.close()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"step": 1, "loss": 2.5, "lr": 1e-4},
        {"step": 1, "event": "validation", "bleu": 3.0},
        {"step": 2, "loss": "nan"},
        {
            "step": 2,
            "event": "samples",
            "samples": [{"source": "Hallo", "reference": "Hello", "text": "Hullo"}],
        },
    ]


def test_a_resumed_file_keeps_what_the_checkpoint_knew(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        '{"step": 1}\n{"step": 2}\n{"step": 2, "event": "validation"}\n{"step": 3}\n'
        '{"step": 2, "event": "summary"}\n{"step": 1, "lo'
    )
    MetricsFile(path, after=2).close()
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n{"step": 2, "event": "validation"}\n'


def test_a_new_run_starts_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n')
    MetricsFile(path).close()
    assert path.read_text() == ""


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"metrics\.jsonl"):
        MetricsFile(tmp_path / "missing" / "metrics.jsonl")


def test_plain_lines_come_by_time_and_tell_the_time_left() -> None:
    now = 0.0
    stream = io.StringIO()
    events = Events([Terminal(stream, clock=lambda: now)])
    times = []
    for step in range(10_001):
        before = stream.tell()
        events.progress(step, 10_000, "training", loss=2.0, speed=300)
        if stream.tell() > before:
            times.append(now)
        now += 0.36
    lines = stream.getvalue().splitlines()
    assert lines[1] == "training 14/10000, loss 2, speed 300, 59:55 left"
    gaps = [end - start for start, end in itertools.pairwise(times)]
    assert max(gaps[:12]) < 31  # soon, and then every half a minute
    assert 100 < max(gaps) < 181  # rarer in long work
    events.warn("careful")
    events.note("done")
    assert stream.getvalue().endswith("warning: careful\ndone\n")


def test_work_that_is_limited_by_time_shows_times() -> None:
    stream = io.StringIO()
    Terminal(stream).handle(Progress(138, 300, "training", {"step": 36}, in_seconds=True))
    assert stream.getvalue() == "training 2:18/5:00, step 36\n"


def test_a_long_step_reports_its_time() -> None:
    recorder = Recorder()
    with Events([recorder]).ticking("compiling", every=0.01):
        time.sleep(0.1)
    ticks = [event for event in recorder.events if isinstance(event, Progress)]
    assert len(ticks) >= 3
    # The last one ends the bar.
    assert [tick.done == tick.total for tick in ticks] == [False] * (len(ticks) - 1) + [True]


def test_the_same_work_again_starts_its_own_clock() -> None:
    now = 0.0
    stream = io.StringIO()
    terminal = Terminal(stream, clock=lambda: now)
    for moment, done in ((0, 0), (10, 100), (10_000, 0), (10_010, 50)):
        now = moment
        terminal.handle(Progress(done, 100, "translating"))
    assert stream.getvalue().splitlines()[-1] == "translating 50/100, 0:10 left"


def test_plain_lines_without_a_total_grow_rare() -> None:
    now = 0.0
    stream = io.StringIO()
    events = Events([Terminal(stream, clock=lambda: now)])
    for done in range(300):
        events.progress(done, None, "reading")
        now += 1
    assert stream.getvalue().startswith("reading 0\nreading 5\nreading 10\nreading 20\n")
    assert len(stream.getvalue().splitlines()) <= 23


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = FakeTerminal()
    events = Events([Terminal(stream)])
    events.progress(1, 4, "training", loss=2.0)
    events.note("[bold] is printed as it is")
    events.progress(2, 4, "training", loss=1.5)
    events.close()
    shown = stream.getvalue()
    assert "training" in shown
    assert "loss 1.5" in shown
    assert "[bold] is printed as it is" in shown
