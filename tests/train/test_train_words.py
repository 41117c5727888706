"""Taggers and readers through the same trainer, from scratch and from a masked language model."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful.data.text_corpus import QuestionReader, TaggedReader
from heedful.errors import ConfigError, DataError
from heedful.events import Events
from heedful.models.checkpoint import load_model
from heedful.models.encoder import EncoderModel
from heedful.train.objective import LossContext
from heedful.train.run import run_training
from heedful.train.run_settings import RunSettings
from heedful.train.task import Task, prepare_task

from .conftest import noted_losses, short_run

SHAPE = {"width": 16, "encoder_layers": 2, "num_heads": 2, "feedforward": 32}
TAGS = {"sun": "B-X", "rain": "I-X", "wind": "O", "snowflake": "B-Y"}
TASKS = ["tag", "answer"]


def write_tagged(path: Path, seed: int, sentences: int) -> str:
    draw = random.Random(seed)
    rows = [draw.choices(list(TAGS), k=draw.randint(1, 9)) for _ in range(sentences)]
    if path.suffix == ".jsonl":
        items = [{"tokens": row, "tags": [TAGS[word] for word in row]} for row in rows]
        path.write_text("".join(json.dumps(item) + "\n" for item in items))
    else:
        blocks = ["".join(f"{word}\t{TAGS[word]}\n" for word in row) for row in rows]
        path.write_text("# begin\n" + "\n".join(blocks))
    return str(path)


def write_questions(path: Path, seed: int, count: int) -> str:
    draw = random.Random(seed)
    lines = []
    for _ in range(count):
        words = draw.choices(list(TAGS), k=draw.randint(3, 9))
        asked = draw.choice(["sun", "rain"])
        context = " ".join(words)
        place = words.index(asked) if asked in words else -1
        text = " ".join(words[place : place + 2])  # it may lie across the end of a window
        answers = [{"text": text, "start": context.index(asked)}] if asked in words else []
        lines.append(json.dumps({"question": asked, "context": context, "answers": answers}))
    path.write_text("\n".join(lines))
    return str(path)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("words")
    limits = {"max_length": 8, "batch_tokens": 512}
    return {
        "tag": {
            "train": [
                {"file": write_tagged(folder / "train.conll", 1, 120)},
                {"file": write_tagged(folder / "train.jsonl", 2, 20), "weight": 2.0},
            ],
            "valid": [{"file": write_tagged(folder / "valid.conll", 3, 30)}],
            **limits,
        },
        "answer": {
            "train": [
                {"file": write_questions(folder / "q.jsonl", 1, 120)},
                {"file": write_questions(folder / "q2.jsonl", 2, 20), "weight": 2.0},
            ],
            "valid": [{"file": write_questions(folder / "qv.jsonl", 3, 30)}],
            **limits,
        },
    }


def settings(task: str, data: dict[str, Any], **changes: Any) -> RunSettings:
    return short_run(task, SHAPE, data, changes)


def prepared(run: Path, chosen: RunSettings) -> Task:
    return prepare_task(run, chosen, None, Events([]))


def row_count(task: Task) -> int:
    return 1 + max(int(index) for batch in task.source.plan(0) for index in batch)


@pytest.mark.parametrize("task", TASKS)
def test_a_stopped_and_resumed_run_is_the_same(tmp_path: Path, files: Any, task: str) -> None:
    data = files[task]
    whole = run_training(tmp_path / "whole", settings(task, data), events=Events([]))
    run_training(tmp_path / "parts", settings(task, data, max_steps=10), events=Events([]))
    parts = run_training(tmp_path / "parts", settings(task, data), resume=True, events=Events([]))
    assert noted_losses(tmp_path / "parts") == noted_losses(tmp_path / "whole")
    assert parts.scores == whole.scores
    assert whole.epochs > 1
    names = {"tag": {"accuracy", "span_f1"}, "answer": {"exact_match", "f1"}}
    assert {"loss"} | names[task] <= whole.scores.keys()
    _check_by_hand(tmp_path / "whole", data, task, dict(whole.scores))


def _check_by_hand(run: Path, data: Any, task: str, scores: dict[str, float]) -> None:
    """The command's pipeline, text by text, comes to what validation says."""
    pipeline = heedful.load(run, device="cpu", precision="fp32")
    path = Path(data["valid"][0]["file"])
    if task == "tag":
        right = words = 0
        for sentence in TaggedReader(path):
            (given,) = pipeline.tag([sentence.text])
            pairs = zip(given, sentence.tags, strict=True)
            right += sum(one.label == tag for one, tag in pairs)
            words += len(sentence.words)
        assert scores["accuracy"] == right / words
        return
    correct = []
    for item in QuestionReader(path):
        (answer,) = pipeline.answer([(item.question, item.context)])
        expected = item.answers[0].text if item.answers else ""
        correct.append(answer.text == expected)
    assert scores["exact_match"] == sum(correct) / len(correct)


@pytest.mark.parametrize("task", TASKS)
def test_rows_are_shown_as_often_as_the_weights_say(tmp_path: Path, files: Any, task: str) -> None:
    prepared_task = prepared(tmp_path, settings(task, files[task]))
    source = prepared_task.source
    shown: dict[int, int] = {}
    for number in range(source.count(0)):
        batch = source.batch(0, number)
        assert batch.ids.numel() <= 512
        for index in batch.indices.tolist():
            shown[index] = shown.get(index, 0) + 1
    first, second = (corpus["file"] for corpus in files[task]["train"])
    for index, times in shown.items():
        (line,) = source.lines([index])
        assert times == (1 if line.startswith(f"{first}:") else 2)
        assert line.startswith((f"{first}:", f"{second}:"))
    assert len(shown) == row_count(prepared_task)


def test_each_word_is_a_target_once_with_its_tag(tmp_path: Path, files: Any) -> None:
    task = prepared(tmp_path, settings("tag", files["tag"]))
    tokenizer = task.tokenizers.source
    names = task.new_model().spec.heads[0].labels
    found: dict[str, list[tuple[str, str]]] = {}
    source = task.source
    order = torch.arange(row_count(task))  # windows of a sentence follow each other
    batch = source.make(order.numpy(), 0)
    assert batch.ids.shape[1] == 8  # some sentences are longer
    for row, place, target in zip(
        batch.rows.tolist(), batch.places.tolist(), batch.targets.tolist(), strict=True
    ):
        assert batch.positions[row, place] == place
        piece = tokenizer.token(int(batch.ids[row, place]))
        found.setdefault(source.lines([row])[0], []).append((piece, names[target]))
    for corpus in files["tag"]["train"]:
        for sentence in TaggedReader(Path(corpus["file"])):
            marked = found[f"{corpus['file']}:{sentence.line}"]
            assert [tag for _, tag in marked] == list(sentence.tags)
            for (piece, _), word in zip(marked, sentence.words, strict=True):
                assert f"\u2581{word}".startswith(piece)


def test_windows_point_at_whole_answers_or_at_their_first_token(tmp_path: Path, files: Any) -> None:
    task = prepared(tmp_path, settings("answer", {**files["answer"], "stride": 3}))
    tokenizer = task.tokenizers.source
    source = task.source
    pointed: dict[str, list[str]] = {}
    for index in range(row_count(task)):
        batch = source.make(torch.tensor([index]).numpy(), 0)
        assert batch.places.tolist() == [0, 1]
        start, end = batch.targets.tolist()
        text = tokenizer.decode(batch.ids[0, start : end + 1].tolist()) if start else ""
        assert start == end == 0 or start >= int(batch.second[0])
        pointed.setdefault(source.lines([index])[0], []).append(text.strip())
    for corpus in files["answer"]["train"]:
        for item in QuestionReader(Path(corpus["file"])):
            texts = set(pointed[item.where]) - {""}
            assert texts == {item.answers[0].text for _ in item.answers}


@pytest.mark.parametrize("task", TASKS)
def test_every_parameter_learns_and_the_loss_is_that_of_the_targets(
    tmp_path: Path, files: Any, task: str
) -> None:
    chosen = settings(task, files[task], model={**SHAPE, "dropout": 0.0})
    prepared_task = prepared(tmp_path, chosen)
    model = prepared_task.new_model().train()
    assert isinstance(model, EncoderModel)
    batch = prepared_task.source.batch(0, 0)
    result = prepared_task.objective.loss(model, batch, LossContext(1))
    assert result.tokens == len(batch.targets)
    result.loss_sum.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        # What is added to all scores of a softmax changes nothing.
        changes_nothing = "key.bias" in name or name == "heads.span.output.bias"
        assert bool(parameter.grad.any()) or changes_nothing, name
    alone = 0.0
    for row in range(len(batch.indices)):  # row by row, without padding
        size = int((batch.positions[row] >= 0).sum())
        with torch.no_grad():
            states = model(batch.ids[row : row + 1, :size], torch.arange(size)[None])
            mine = batch.rows == row
            if task == "tag":
                logs = model.token_logits(states)[0].log_softmax(-1)[batch.places[mine]]
            else:
                logs = model.span_logits(states)[0].log_softmax(0).T[batch.places[mine]]
        alone -= float(logs.gather(1, batch.targets[mine][:, None]).sum())
    assert float(result.loss_sum.detach()) == pytest.approx(alone, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("v.conll", "sun B-X\n\nwind O\nrain B-Z\n", r"v.conll:4: .*'B-Z'"),
        ("v.jsonl", '{"tokens": ["sun"], "tags": ["B-Z"]}\n', r"v.jsonl:1: .*'B-Z'"),
        ("v.conll", "sun B-X\nrain\n", r"v.conll:2: The line has 1 column"),
        ("v.conll", "\n", "v.conll: The file holds no sentence"),
    ],
)
def test_wrong_tags_are_told_before_anything_is_written(
    tmp_path: Path, files: Any, name: str, content: str, told: str
) -> None:
    (tmp_path / name).write_text(content)
    chosen = settings("tag", {**files["tag"], "valid": [{"file": str(tmp_path / name)}]})
    with pytest.raises(DataError, match=told):
        run_training(tmp_path / "run", chosen, events=Events([]))
    assert not (tmp_path / "run" / "config.toml").exists()


def test_what_cannot_be_learned_from(tmp_path: Path, files: Any) -> None:
    (tmp_path / "one.conll").write_text("sun X\nrain X\n")
    (tmp_path / "pos.conll").write_text("sun X\nrain Y\n")
    one = {**files["tag"], "train": [{"file": str(tmp_path / "one.conll")}], "valid": []}
    pos = {**one, "train": [{"file": str(tmp_path / "pos.conll")}]}
    item = {"question": "sun", "context": "rain", "answers": []}
    (tmp_path / "none.jsonl").write_text(json.dumps(item))
    none = {**files["answer"], "train": [{"file": str(tmp_path / "none.jsonl")}]}
    short = {**files["answer"], "max_length": 4}
    spans = {"metrics": ["accuracy", "span_f1"]}
    bleu = {"metrics": ["accuracy", "bleu"]}
    smooth = {"label_smoothing": 0.1}
    strided = {**files["tag"], "train": [{"file": "a.txt"}], "stride": 5}
    for chosen, told in (
        (settings("tag", one), "only tag is 'X'"),
        (settings("tag", pos, validation=spans), "span_f1 needs tags that mark spans"),
        (settings("tag", files["tag"], validation=bleu), "bleu cannot be measured"),
        (settings("answer", none), "No training question has an answer"),
        (settings("answer", short), r"q.jsonl:\d+: .* leave no room for it: 4 is the most"),
        (settings("answer", files["answer"], objective=smooth), "cannot be smoothed"),
        (settings("masked_lm", strided), r"data\.stride is for tag and answer"),
    ):
        with pytest.raises((DataError, ConfigError), match=told):
            run_training(tmp_path / "run", chosen, events=Events([]))


@pytest.mark.parametrize("task", TASKS)
def test_a_run_is_resumed_with_the_same_data_only(tmp_path: Path, files: Any, task: str) -> None:
    data = files[task]
    run_training(tmp_path / "run", settings(task, data, max_steps=4), events=Events([]))
    first, second = data["train"]
    for train in ([first, {**second, "weight": 1.0}], [first], [second, first]):
        changed = settings(task, {**data, "train": train}, max_steps=8)
        with pytest.raises(DataError, match="not those the run began with"):
            run_training(tmp_path / "run", changed, resume=True, events=Events([]))


def test_both_begin_with_a_masked_language_model(tmp_path: Path, files: Any) -> None:
    text = "".join(f"{a} {b}\n" for a in TAGS for b in TAGS)
    (tmp_path / "text.txt").write_text(text)
    plain = {"train": [{"file": str(tmp_path / "text.txt")}], "max_length": 8}
    masked = {"validation": {"metrics": [], "choose_by": "loss"}, "max_steps": 2}
    whole = {**plain, "batch_tokens": 64}
    run_training(tmp_path / "mlm", settings("masked_lm", whole, **masked), events=Events([]))
    before, tokenizers = load_model(tmp_path / "mlm")
    assert tokenizers is not None
    for name in TASKS:
        chosen = settings(name, files[name], init=str(tmp_path / "mlm"))
        task = prepared(tmp_path / name, chosen)
        assert task.tokenizers.fingerprint == tokenizers.fingerprint
        states = task.new_model().state_dict()
        for key, tensor in before.state_dict().items():
            assert key.startswith("heads.") or tensor.equal(states[key]), key
    # a reader of questions that all have answers goes on with some that have none
    answered = list(QuestionReader(Path(files["answer"]["train"][0]["file"])))
    lines = [
        json.dumps(
            {
                "question": item.question,
                "context": item.context,
                "answers": [answer._asdict() for answer in item.answers],
            }
        )
        for item in answered
        if item.answers
    ]
    (tmp_path / "all.jsonl").write_text("\n".join(lines))
    data = {**files["answer"], "train": [{"file": str(tmp_path / "all.jsonl")}], "valid": []}
    run_training(tmp_path / "v1", settings("answer", data, max_steps=2), events=Events([]))
    model, _ = load_model(tmp_path / "v1")
    assert [head.unanswerable for head in model.spec.heads] == [False]
    task = prepared(tmp_path / "x", settings("answer", files["answer"], init=str(tmp_path / "v1")))
    again = task.new_model()
    assert [head.unanswerable for head in again.spec.heads] == [True]
    assert again.state_dict()["heads.span.output.weight"].equal(
        model.state_dict()["heads.span.output.weight"]
    )
