"""Soft terms in training batches: which sources have them, again and again, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.apps.shards.shard_writer import write_shards
from heedful.data.corpus_spec import CorpusSpec
from heedful.errors import ConfigError, DataError, UserError
from heedful.events import Events, Note, Recorder
from heedful.text.inline_terms import mark_ids
from heedful.train.batch_source import DataPosition
from heedful.train.run import run_training
from heedful.train.run_settings import RunSettings
from heedful.train.task import Task, prepare_task

from .conftest import WORDS, MakeSettings, write_reversed


def prepared(folder: Path, settings: RunSettings) -> Task:
    return prepare_task(folder, settings, None, Events())


@pytest.fixture(scope="module")
def terms(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A glossary of two words, which are their own translations in this language."""
    path = tmp_path_factory.mktemp("terms") / "terms.tsv"
    path.write_text(f"{WORDS[0]}\t{WORDS[0]}\n{WORDS[1]}\t{WORDS[1]}\n")
    return str(path)


def marked(task: Task, epoch: int, count: int = 12) -> dict[int, list[int]]:
    """The sources of an epoch's first batches that have marks, by the numbers of their pairs."""
    assert task.tokenizers is not None
    separator, end = mark_ids(task.tokenizers.source)
    place, found = DataPosition(epoch, 0), dict[int, list[int]]()
    for _ in range(count):
        batch = task.source.batch(*place)
        assert not ((batch.target_input == separator) | (batch.target_input == end)).any()
        for number, row, positions in zip(
            batch.indices.tolist(), batch.source, batch.source_positions, strict=True
        ):
            ids = row[positions >= 0].tolist()
            assert ids.count(separator) == ids.count(end)
            if separator in ids:
                found[number] = ids
        place = task.source.after(place)
    return found


@pytest.mark.parametrize("shards", [False, True])
def test_sources_with_terms_depend_on_seed_and_epoch(
    tmp_path: Path, make_settings: MakeSettings, terms: str, shards: bool
) -> None:
    data: dict[str, Any] = {"batch_tokens": 100}
    if shards:
        spec = CorpusSpec(**write_reversed(tmp_path, "more", 200, 1))
        write_shards([spec], tmp_path / "shards", shard_examples=16)
        data |= {"train": [{"shards": str(tmp_path / "shards")}], "block_mb": 0.002}
    settings = make_settings(soft_terms=terms, soft_terms_share=0.5, data=data)
    first, second = (prepared(tmp_path / name, settings) for name in "ab")
    assert first.fingerprint == second.fingerprint
    epochs = [marked(first, epoch) for epoch in (0, 1)]
    assert epochs == [marked(second, epoch) for epoch in (0, 1)]
    assert epochs[0].keys() != epochs[1].keys()
    other = prepared(tmp_path / "c", settings.model_copy(update={"seed": 2}))
    assert marked(other, 0) != epochs[0]
    none = prepared(tmp_path / "d", settings.model_copy(update={"soft_terms_share": 0.0}))
    assert not marked(none, 0)
    for task in (first, second, other, none):
        task.source.close()


def test_a_share_of_the_pairs_with_terms_has_them(
    tmp_path: Path, make_settings: MakeSettings, terms: str
) -> None:
    settings = make_settings(soft_terms=terms, soft_terms_share=1.0, data={"batch_tokens": 100})
    task = prepared(tmp_path, settings)
    source = Path(settings.data.train[0].source or "").read_text().splitlines()
    have = {i for i, line in enumerate(source) if {WORDS[0], WORDS[1]} & set(line.split())}
    count = task.source.count(0)
    assert marked(task, 0, count).keys() == have
    half = prepared(tmp_path, settings.model_copy(update={"soft_terms_share": 0.5}))
    found = [marked(half, epoch, count).keys() for epoch in range(6)]
    assert all(each < have for each in found)
    assert 0.4 < sum(map(len, found)) / len(have) / 6 < 0.6
    tight = settings.data.model_copy(update={"max_length": 10})
    task = prepared(tmp_path, settings.model_copy(update={"data": tight}))
    assert max(map(len, marked(task, 0, task.source.count(0)).values())) <= 11  # with its end


def test_a_run_goes_on_as_if_it_had_not_stopped_and_only_with_its_terms(
    tmp_path: Path, make_settings: MakeSettings, terms: str
) -> None:
    own = tmp_path / "terms.tsv"
    own.write_bytes(Path(terms).read_bytes())

    def settings(max_steps: int) -> RunSettings:
        schedule = {"kind": "constant"}
        return make_settings(soft_terms=str(own), schedule=schedule, max_steps=max_steps)

    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run_training(whole, settings(max_steps=8), resume=False, events=Events())
    run_training(parts, settings(max_steps=4), resume=False, events=Events())
    run_training(parts, settings(max_steps=8), resume=True, events=Events())
    files = [run / "model" / "model.safetensors" for run in (whole, parts)]
    assert files[0].read_bytes() == files[1].read_bytes()
    own.write_text(f"{WORDS[2]}\t{WORDS[2]}\n")
    with pytest.raises(UserError, match="not those the run began with"):
        run_training(parts, settings(max_steps=12), resume=True, events=Events())


def test_a_trained_model_can_learn_soft_terms(
    tmp_path: Path, make_settings: MakeSettings, terms: str
) -> None:
    first = make_settings(max_steps=8)
    run_training(tmp_path / "first", first, resume=False, events=Events())
    begun = make_settings(max_steps=8).plain() | {
        "init": str(tmp_path / "first"),
        "soft_terms": terms,
        "model": {},
    }
    recorder = Recorder()
    run_training(
        tmp_path / "second", RunSettings.parse(begun), resume=False, events=Events([recorder])
    )
    assert any("2 soft terms" in text for text in recorder.texts(Note))
    assert (tmp_path / "second" / "model" / "soft_terms.json").is_file()
    assert not (tmp_path / "first" / "model" / "soft_terms.json").exists()


def test_what_nothing_can_be_learned_from_is_refused(
    tmp_path: Path, make_settings: MakeSettings, terms: str
) -> None:
    torch.manual_seed(0)
    strange = tmp_path / "strange.tsv"
    strange.write_text("nowhere\tnirgends\n")
    with pytest.raises(DataError, match=r"together with its translation|cannot spell"):
        prepared(tmp_path, make_settings(soft_terms=str(strange)))
    missing = str(tmp_path / "missing.tsv")
    with pytest.raises(DataError, match="cannot be read"):
        prepared(tmp_path, make_settings(soft_terms=missing))
    separate = make_settings(soft_terms=terms, tokenizer={"joint": False})
    with pytest.raises(ConfigError, match="one vocabulary"):
        prepared(tmp_path, separate)
    text = make_settings(soft_terms=terms, task="causal_lm")
    with pytest.raises(ConfigError, match="soft_terms is for translation"):
        text.check_for_task()
