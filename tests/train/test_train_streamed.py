"""Training on shards: the order of batches, resumed runs, and what is refused."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from heedful.apps.shards.shard_writer import write_shards
from heedful.data.corpus_spec import CorpusSpec
from heedful.errors import ConfigError, DataError
from heedful.events import Events, Note, Recorder
from heedful.train.batch_source import Batch, DataPosition, Source
from heedful.train.run import run_training
from heedful.train.run_settings import RunSettings
from heedful.train.task import Task, prepare_task

from .conftest import Crash, CrashAt, MakeSettings, write_reversed, write_text

TIMES = {"tokens_per_second", "seconds", "peak_memory_bytes", "precision"}
STREAM = {"block_mb": 0.002, "shuffle_shards": 3, "batch_tokens": 60}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Shards of a large and a small corpus of pairs, and of texts."""
    folder = tmp_path_factory.mktemp("streamed")
    made = {}
    for name, count in (("large", 200), ("small", 20)):
        spec = CorpusSpec(**write_reversed(folder, name, count, count))
        write_shards([spec], folder / f"{name}-shards", shard_examples=16)
        made[name] = str(folder / f"{name}-shards")
    text = CorpusSpec(file=write_text(folder / "text.txt", 1, 300))
    write_shards([text], folder / "texts", shard_examples=32, unit="line")
    return made | {"texts": str(folder / "texts")}


def streamed(make_settings: MakeSettings, shards: dict[str, str], **changes: Any) -> RunSettings:
    corpora = [{"shards": shards["large"]}, {"shards": shards["small"], "weight": 2.5}]
    data = {**STREAM, **changes.pop("data", {}), "train": corpora}
    return make_settings(**changes, data=data)


def language_model(shards: dict[str, str], **changes: Any) -> RunSettings:
    values = {
        "task": "causal_lm",
        "model": {"width": 16, "decoder_layers": 1, "num_heads": 2, "feedforward": 16},
        "tokenizer": {"vocabulary_size": 60},
        "data": {**STREAM, "train": [{"shards": shards["texts"]}], "max_length": 12},
        "validation": {"metrics": [], "choose_by": "loss"},
        "checkpoint": {"every_steps": 3},
        "max_steps": 12,
        "precision": "fp32",
    }
    return RunSettings.parse({**values, **changes})


def prepared(folder: Path, settings: RunSettings) -> Task:
    return prepare_task(folder, settings, None, Events())


def read_on(
    source: Source, place: DataPosition, count: int
) -> list[tuple[DataPosition, list[int]]]:
    result = []
    for _ in range(count):
        result.append((place, contents(source.batch(*place))))
        place = source.after(place)
    return result


def contents(batch: Batch) -> list[int]:
    return [*batch.indices.tolist(), batch.target_tokens]


@pytest.mark.parametrize("workers", [0, 2])
def test_any_place_is_found_as_if_it_had_been_read_up_to(
    tmp_path: Path, make_settings: MakeSettings, shards: dict[str, str], workers: int
) -> None:
    settings = streamed(make_settings, shards)
    expected = read_on(prepared(tmp_path, settings).source, DataPosition(0, 0), 90)
    assert {place.epoch for place, _ in expected} == {0, 1, 2, 3}
    first_epoch = [batch[:-1] for place, batch in expected if place.epoch == 0]
    shown = Counter(number for batch in first_epoch for number in batch)
    assert sorted(shown) == list(range(220))
    assert (shown[0], shown[200] in (2, 3), shown.total()) == (1, True, 250)
    changed = settings.data.model_copy(update={"workers": workers})
    again = prepared(tmp_path, settings.model_copy(update={"data": changed})).source
    for start in (17, 83, 0, 55):
        assert read_on(again, expected[start][0], 7) == expected[start : start + 7]
    again.close()


def test_processes_that_share_updates_make_the_same_batches(
    tmp_path: Path, make_settings: MakeSettings, shards: dict[str, str]
) -> None:
    """Each of three makes every third batch, and asks for the place of the next update first."""
    settings = streamed(make_settings, shards)
    expected = read_on(prepared(tmp_path, settings).source, DataPosition(0, 0), 60)
    shared: dict[DataPosition, list[int]] = {}
    for rank in range(3):
        source = prepared(tmp_path, settings).source
        place = DataPosition(0, 0)
        for _ in range(20):
            mine, after = place, place
            for number in range(3):
                mine = after if number == rank else mine
                after = source.after(after)
            shared[mine] = contents(source.batch(*mine))
            place = after
    assert shared == dict(expected)


def test_lines_are_those_of_the_shards(
    tmp_path: Path, make_settings: MakeSettings, shards: dict[str, str]
) -> None:
    for settings in (streamed(make_settings, shards), language_model(shards)):
        source = prepared(tmp_path, settings).source
        batch = source.batch(0, 0)
        for line in source.lines(batch.indices.tolist()):
            file, number = line.rsplit(":", 1)
            assert Path(file).is_file()
            assert 1 <= int(number) <= 32
        assert len(list(source.sample(3))) >= 3
        assert source.count(0) > 5


def end_state(run: Path) -> list[Any]:
    last = max((run / "checkpoints").glob("step-*"))
    metrics = [
        {key: value for key, value in json.loads(line).items() if key not in TIMES}
        for line in (run / "metrics.jsonl").read_text().splitlines()
    ]
    state = json.loads((last / "state.json").read_text())
    state["training"].pop("seconds")
    for settings in (state["settings"]["data"], state):  # may differ between equal runs
        settings.pop("workers", None)
    return [
        metrics,
        state,
        *((last / f"{n}.safetensors").read_bytes() for n in ("model", "training")),
    ]


@pytest.mark.parametrize("task", ["translation", "causal_lm"])
def test_crashes_leave_no_trace(
    tmp_path: Path, make_settings: MakeSettings, shards: dict[str, str], task: str
) -> None:
    def settings(workers: int) -> RunSettings:
        made = (
            language_model(shards)
            if task == "causal_lm"
            else streamed(
                make_settings,
                shards,
                optimizer={"accumulate": 2},
                objective={"bpe_dropout": 0.1},
                max_steps=24,
            )
        )
        return made.model_copy(update={"data": made.data.model_copy(update={"workers": workers})})

    run_training(tmp_path / "reference", settings(0), events=Events())
    run = tmp_path / "run"
    for number, step in enumerate((2, 7, 10)):
        with pytest.raises(Crash):
            run_training(
                run, settings(number % 2), resume=number > 0, events=Events([CrashAt(step)])
            )
    run_training(run, settings(1), resume=True, events=Events())
    assert end_state(run) == end_state(tmp_path / "reference")


def test_other_shards_are_not_resumed(
    tmp_path: Path, make_settings: MakeSettings, shards: dict[str, str]
) -> None:
    settings = streamed(make_settings, shards, max_steps=4)
    run_training(tmp_path / "run", settings, events=Events())
    exchanged = [{"shards": shards["small"]}, {"shards": shards["large"], "weight": 2.5}]
    for corpora in ([{"shards": shards["large"]}], exchanged):
        changed = streamed(make_settings, shards, max_steps=8).model_copy(
            update={
                "data": settings.data.model_copy(
                    update={"train": tuple(CorpusSpec(**corpus) for corpus in corpora)}
                )
            }
        )
        with pytest.raises(DataError, match="not those the run began with"):
            run_training(tmp_path / "run", changed, resume=True, events=Events())


def test_the_run_says_what_it_reads(
    tmp_path: Path, make_settings: MakeSettings, shards: dict[str, str]
) -> None:
    recorder = Recorder()
    settings = streamed(
        make_settings,
        shards,
        max_steps=1,
        data={"tokenizer_sample": 50, "max_length": 5, "temperature": 5},
    )
    run_training(tmp_path / "run", settings, events=Events([recorder]))
    notes = "\n".join(recorder.texts(Note))
    assert f"train {shards['large']}: 200 pairs in 13 shards; " in notes
    assert "The tokenizer is trained on 50 of 250 pairs (data.tokenizer_sample)" in notes
    assert "Pairs left out until now: " in notes
    assert re.search(r"\d too long \(.*-shards/shard-00000\d\.jsonl\.gz:\d+ …\)", notes)
    assert "unknown tokens" in notes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "masked_lm"}, "read by translators and language models in training only"),
        ({"task": "classify"}, "read by translators and language models in training only"),
        ({"model": {"memory": 8, "positions": "transformer_xl"}}, "A model with a memory"),
    ],
)
def test_tasks_that_cannot_read_shards_say_so(
    tmp_path: Path, shards: dict[str, str], changes: dict[str, Any], message: str
) -> None:
    settings = language_model(shards, **changes)
    with pytest.raises((DataError, ConfigError), match=message):
        prepared(tmp_path, settings)


def test_forms_that_do_not_go_together_are_refused(
    tmp_path: Path, make_settings: MakeSettings, shards: dict[str, str], corpus: dict[str, Any]
) -> None:
    streams = {"shards": shards["large"]}
    with pytest.raises(ConfigError, match="some corpora are shards and others are files"):
        make_settings(data={"train": [streams, *corpus["train"]]})
    with pytest.raises(ConfigError, match="shards are for training only"):
        make_settings(data={"valid": [streams]})
    with pytest.raises(ConfigError, match="either source and target, or file, or shards"):
        make_settings(data={"train": [{**streams, "file": "a.tsv"}]})
    with pytest.raises(DataError, match="hold texts, and this task is trained on pairs"):
        prepared(tmp_path, make_settings(data={"train": [{"shards": shards["texts"]}]}))
    text = write_text(tmp_path / "text.txt", 1, 30)
    data = {"train": [{"file": text}], "temperature": 2, "max_length": 12}
    with pytest.raises(ConfigError, match=r"data\.temperature = 2"):
        prepared(tmp_path, language_model(shards, data=data))


def test_killed_on_the_command_line_and_resumed(tmp_path: Path) -> None:
    """With workers, which end too; the metrics are those of a run that nobody disturbed."""
    corpus = write_reversed(tmp_path, "train", 300, 1)
    heedful = [sys.executable, "-m", "heedful"]
    run_of = [*heedful, "data", "shard", corpus["source"], corpus["target"]]
    subprocess.run(
        [*run_of, "--out", str(tmp_path / "shards"), "--shard-examples", "20"], check=True
    )
    flags = "--preset tiny --model.width 16 --model.feedforward 16 --model.num-heads 2 "
    flags += "--data.block-mb 0.002 --data.batch-tokens 60 --data.workers 1 --precision fp32 "
    flags += "--tokenizer.vocabulary-size 60 --checkpoint.every-steps 20 --max-steps 120"
    train = [*heedful, "train", "--train", str(tmp_path / "shards"), *flags.split()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*train, str(tmp_path / "whole")], check=True, env=environment)
    run = tmp_path / "killed"
    with subprocess.Popen([*train, str(run)], env=environment) as process:
        deadline = time.monotonic() + 60
        while not (run / "checkpoints/step-00000040").is_dir() and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    resumed = [*heedful, "train", str(run), "--resume", "--data.workers", "2"]
    subprocess.run(resumed, check=True, env=environment)
    assert end_state(run) == end_state(tmp_path / "whole")
