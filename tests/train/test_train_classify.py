"""Classifiers through the same trainer, from scratch and from a masked language model."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.errors import ConfigError, DataError
from heedful.events import Events, Note, Recorder, Warning
from heedful.models.checkpoint import load_model, read_weights
from heedful.models.encoder import EncoderModel
from heedful.models.encoder_spec import SequenceHeadSpec
from heedful.train.objective import LossContext
from heedful.train.run import run_training
from heedful.train.run_settings import RunSettings
from heedful.train.task import Task, prepare_task

from .conftest import noted_losses, short_run

SHAPE = {"width": 16, "encoder_layers": 2, "num_heads": 2, "feedforward": 32}
WORDS = {"sun": "good", "rain": "bad", "wind": "bad", "snow": "so-so"}


def write_labelled(path: Path, seed: int, lines: int) -> str:
    draw = random.Random(seed)
    rows = []
    for _ in range(lines):
        words = draw.choices(list(WORDS), k=draw.randint(1, 5))
        rows.append((" ".join(words), WORDS[words[0]]))
    if path.suffix == ".tsv":
        content = "".join(f"{text}\t{label}\n" for text, label in rows)
    else:
        lines_ = [json.dumps({"text": text, "label": label}) for text, label in rows]
        content = "\n\n".join(lines_) + "\n"
    path.write_text(content, encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("texts")
    return {
        "train": [
            {"file": write_labelled(folder / "train.tsv", 1, 150)},
            {"file": write_labelled(folder / "train.jsonl", 2, 30), "weight": 2.0},
        ],
        "valid": [{"file": write_labelled(folder / "valid.tsv", 3, 40)}],
        "max_length": 16,
        "batch_tokens": 256,
        "cache": str(folder / "cache"),
    }


def settings(files: dict[str, Any], **changes: Any) -> RunSettings:
    return short_run("classify", SHAPE, files, changes)


def prepared(run: Path, chosen: RunSettings) -> Task:
    return prepare_task(run, chosen, None, Events([]))


def test_a_stopped_and_resumed_run_is_the_same(tmp_path: Path, files: dict[str, Any]) -> None:
    whole = run_training(tmp_path / "whole", settings(files), events=Events([]))
    run_training(tmp_path / "parts", settings(files, max_steps=10), events=Events([]))
    parts = run_training(tmp_path / "parts", settings(files), resume=True, events=Events([]))
    assert noted_losses(tmp_path / "parts") == noted_losses(tmp_path / "whole")
    assert parts.scores == whole.scores
    assert whole.epochs > 1
    assert whole.scores["accuracy"] > 0.7
    # A loss per label has no perplexity.
    assert whole.scores.keys() == {"loss", "accuracy", "macro_f1"}


def test_the_model_knows_its_labels(tmp_path: Path, files: dict[str, Any]) -> None:
    summary = run_training(tmp_path / "run", settings(files, max_steps=12), events=Events([]))
    model, tokenizers = load_model(tmp_path / "run")
    assert isinstance(model, EncoderModel)
    assert tokenizers is not None
    (head,) = model.spec.heads
    assert isinstance(head, SequenceHeadSpec)
    assert head.labels == ("bad", "good", "so-so")
    right = 0
    tokenizer = tokenizers.source
    lines = Path(files["valid"][0]["file"]).read_text().splitlines()
    for line in lines:  # alone and unpadded, framed by the tokenizer's own frame
        text, label = line.split("\t")
        ids = torch.tensor([[*tokenizer.first, *tokenizer.encode(text), *tokenizer.last]])
        positions = torch.arange(ids.shape[1])[None]
        logits = model.sequence_logits(model(ids, positions), positions)
        right += head.labels[int(logits.argmax())] == label
    assert right / len(lines) == summary.scores["accuracy"]


def test_every_text_is_shown_as_often_as_its_weight_says(
    tmp_path: Path, files: dict[str, Any]
) -> None:
    task = prepared(tmp_path, settings(files))
    shown: dict[str, int] = {}
    for number in range(task.source.count(0)):
        batch = task.source.batch(0, number)
        assert batch.ids.numel() <= 256
        for line in task.source.lines(batch.indices.tolist()):
            shown[line] = shown.get(line, 0) + 1
    first, second = (corpus["file"] for corpus in files["train"])
    expected = {f"{first}:{line}": 1 for line in range(1, 151)}
    assert shown == expected | {f"{second}:{line}": 2 for line in range(1, 61, 2)}


def test_the_loss_is_that_of_the_labels(tmp_path: Path, files: dict[str, Any]) -> None:
    task = prepared(tmp_path, settings(files))
    model = task.new_model().train()
    batch = task.source.batch(0, 0)
    result = task.objective.loss(model, batch, LossContext(1))
    assert result.tokens == batch.target_tokens == len(batch.indices)
    result.loss_sum.backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in model.parameters())
    lines = task.source.lines(batch.indices.tolist())
    for line, target in zip(lines, batch.targets.tolist(), strict=True):
        path, _, number = line.rpartition(":")
        assert (
            f"{model.spec.heads[0].labels[target]}"
            in Path(path).read_text().splitlines()[int(number) - 1]
        )


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("v.tsv", "sun\tgood\nrain\tugly\n", r"v.tsv:2: .*'ugly'"),
        ("v.tsv", "sun\tgood\n\nrain\n", r"v.tsv:3: .* 0 tabs"),
        ("v.tsv", "sun\tand\tgood\n", r"v.tsv:1: .* 2 tabs"),
        ("v.tsv", "sun\t \n", r"v.tsv:1: The label is empty"),
        ("v.tsv", " \tgood\n", r"v.tsv:1: The text is empty"),
        ("v.jsonl", '{"text": "sun", "label": "good"}\n{"text": "sun"}\n', r"l:2: .* no 'label'"),
        ("v.jsonl", "sun\n", r"v.jsonl:1: .* not JSON"),
        ("v.txt", "sun\tgood\n", "TAB"),
    ],
)
def test_what_is_no_labelled_text_is_told_with_its_line(
    tmp_path: Path, files: dict[str, Any], name: str, content: str, told: str
) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    chosen = settings({**files, "valid": [{"file": str(tmp_path / name)}]})
    with pytest.raises(DataError, match=told):
        run_training(tmp_path / "run", chosen, events=Events([]))


def test_one_label_is_too_few(tmp_path: Path, files: dict[str, Any]) -> None:
    (tmp_path / "a.tsv").write_text("sun\tgood\nrain\tgood\n", encoding="utf-8")
    chosen = settings({**files, "train": [{"file": str(tmp_path / "a.tsv")}]})
    with pytest.raises(DataError, match="nothing to tell apart"):
        run_training(tmp_path / "run", chosen, events=Events([]))


def test_a_run_is_resumed_with_the_same_data_only(tmp_path: Path, files: dict[str, Any]) -> None:
    run_training(tmp_path / "run", settings(files, max_steps=4), events=Events([]))
    first, second = files["train"]
    for train in ([first, {**second, "weight": 1.0}], [first], [second, first]):
        changed = settings({**files, "train": train}, max_steps=8)
        with pytest.raises(DataError, match="not those the run began with"):
            run_training(tmp_path / "run", changed, resume=True, events=Events([]))


def test_metrics_of_other_tasks_are_refused(tmp_path: Path, files: dict[str, Any]) -> None:
    wrong = settings(files, validation={"metrics": ["bleu", "accuracy"]})
    with pytest.raises(ConfigError, match="bleu cannot be measured"):
        run_training(tmp_path / "run", wrong, events=Events([]))


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run of a masked language model."""
    folder = tmp_path_factory.mktemp("masked")
    text = "".join(f"{a} {b}\n" for a in WORDS for b in WORDS)
    (folder / "text.txt").write_text(text, encoding="utf-8")
    data = {"train": [{"file": str(folder / "text.txt")}], "max_length": 16, "batch_tokens": 64}
    chosen = {"task": "masked_lm", "validation": {"every_steps": 4}, "max_steps": 4}
    run_training(folder / "run", settings(data, **chosen), events=Events([]))
    return folder / "run"


def test_a_classifier_begins_with_an_encoder(
    tmp_path: Path, files: dict[str, Any], masked: Path
) -> None:
    chosen = settings(files, init=str(masked), model={**SHAPE, "dropout": 0.3})
    recorder = Recorder()
    task = prepare_task(tmp_path, chosen, None, Events([recorder]))
    _, tokenizers = load_model(masked)
    assert tokenizers is not None
    assert task.tokenizers.fingerprint == tokenizers.fingerprint
    model = task.new_model()
    fresh = prepare_task(tmp_path, settings(files), tokenizers, Events([])).new_model()
    stored = read_weights(masked / "model")
    for name, tensor in model.state_dict().items():
        if name.startswith("heads."):
            assert tensor.equal(fresh.state_dict()[name]), name
        else:
            assert tensor.equal(stored[name]), name
    told = "\n".join(recorder.texts(Note))
    assert "heads.masked_lm of" in told
    assert "left out" in told
    assert "heads.sequence is not in" in told
    assert "begins anew" in told


def test_a_run_from_an_encoder_resumes_the_same(
    tmp_path: Path, files: dict[str, Any], masked: Path
) -> None:
    chosen = settings(files, init=str(masked), max_steps=8)
    whole = run_training(tmp_path / "whole", chosen, events=Events([]))
    part = settings(files, init=str(masked), max_steps=4)
    run_training(tmp_path / "parts", part, events=Events([]))
    parts = run_training(tmp_path / "parts", chosen, resume=True, events=Events([]))
    assert noted_losses(tmp_path / "parts") == noted_losses(tmp_path / "whole")
    assert parts.scores == whole.scores


def test_what_else_differs_is_refused(tmp_path: Path, files: dict[str, Any], masked: Path) -> None:
    other = settings(files, init=str(masked), model={**SHAPE, "feedforward": 16})
    with pytest.raises(ConfigError, match=r"feedforward is 16, and the model's 32"):
        prepared(tmp_path / "a", other).new_model()


def test_labels_are_those_of_the_classifier_or_new(tmp_path: Path, files: dict[str, Any]) -> None:
    run_training(tmp_path / "run", settings(files, max_steps=2), events=Events([]))
    stored = read_weights(tmp_path / "run" / "model")["heads.sequence.output.weight"]

    def begun(labels: str) -> Any:
        (tmp_path / "two.tsv").write_text(labels, encoding="utf-8")
        fewer = {**files, "train": [{"file": str(tmp_path / "two.tsv")}], "valid": []}
        chosen = settings(fewer, init=str(tmp_path / "run"))
        return prepared(tmp_path / labels.split()[1], chosen).new_model()

    fewer, others = begun("sun\tgood\nrain\tbad\n"), begun("sun\tyes\nrain\tno\n")
    assert fewer.heads["sequence"].output.weight.equal(stored)
    assert others.spec.heads[0].labels == ("no", "yes")


def test_a_header_is_no_class_and_lonely_labels_are_named(tmp_path: Path) -> None:
    rows = [("good film", "pos"), ("bad film", "neg")] * 8

    def noted(header: str, *more: tuple[str, str]) -> list[str]:
        lines = [header, *("\t".join(row) for row in (*rows, *more))]
        (tmp_path / "train.tsv").write_text("\n".join(filter(None, lines)), encoding="utf-8")
        recorder = Recorder()
        chosen = settings(
            {"train": [{"file": str(tmp_path / "train.tsv")}], "max_length": 16},
        )
        prepare_task(tmp_path / "run", chosen, None, Events([recorder]))
        return [*recorder.texts(Warning), *recorder.texts(Note)]

    assert "train.tsv: the first line names the columns" in " ".join(noted("sentence\tlabel"))
    with pytest.raises(DataError, match="like a header: no other has the label 'stars'"):
        noted("review_body\tstars")
    warning = noted("", ("so so", "mixed"))[0]
    assert warning.startswith("1 label with a single example")
    assert f"'mixed' ({tmp_path / 'train.tsv'}:17)" in warning
