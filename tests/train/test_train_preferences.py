"""Conversations and preferences through the trainer, the command line and a server."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from starlette.testclient import TestClient

import heedful
from heedful.apps.serve.application import build_app
from heedful.apps.serve.metrics import Metrics
from heedful.apps.serve.scheduler import Scheduler
from heedful.apps.serve.served_models import ServedModels, parse_model
from heedful.apps.serve.server_parts import ServerParts
from heedful.apps.serve.server_settings import GateSettings, Limits
from heedful.apps.serve.service import Service
from heedful.data.batches import NO_TARGET
from heedful.errors import ConfigError, DataError
from heedful.events import Events
from heedful.interop.hugging_face import export_model, import_model
from heedful.models.checkpoint import load_model
from heedful.search.search_settings import SearchSettings
from heedful.text.chat_template import DEFAULT_TEMPLATE
from heedful.train.objective import LossContext
from heedful.train.preferences.preference_objective import PreferenceBatch, PreferenceObjective
from heedful.train.run import run_training
from heedful.train.run_settings import RunSettings
from heedful.train.task import prepare_task

from .conftest import noted_losses, short_run

SHAPE = {"width": 32, "decoder_layers": 2, "num_heads": 2, "feedforward": 64}
WORDS = ("red", "blue", "green", "grey")


def write_lines(path: Path, *lines: object) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chats")


def chat_settings(folder: Path) -> RunSettings:
    chats = [{"prompt": f"say {word}", "answer": word} for word in WORDS] * 8
    data = {"train": [{"file": write_lines(folder / "chats.jsonl", *chats)}]}
    data |= {"valid": data["train"], "max_length": 64, "batch_tokens": 256}
    changes = {"tokenizer": {"kind": "characters"}, "max_steps": 100}
    changes |= {"checkpoint": {"every_steps": 20}, "validation": {"every_steps": 20}}
    return short_run("causal_lm", SHAPE, data, changes)


@pytest.fixture(scope="module")
def chatty(folder: Path) -> Path:
    """A run that has learned to say a word that it is told."""
    result = run_training(folder / "chatty", chat_settings(folder), events=Events([]))
    assert result.scores["loss"] < 0.5
    return folder / "chatty"


def preferences(folder: Path, chatty: Path, **changes: Any) -> RunSettings:
    lines = [
        {"prompt": f"say {word}", "chosen": word, "rejected": f"{word} {word}"} for word in WORDS
    ] * 4
    data = {"train": [{"file": write_lines(folder / "preferences.jsonl", *lines)}]}
    data |= {"valid": data["train"], "max_length": 64, "batch_tokens": 256}
    values = {"init": str(chatty), "tokenizer": {}, "model": {}}
    values |= {"schedule": {"warmup_steps": 2, "peak_learning_rate": 0.001}}
    return short_run("dpo", SHAPE, data, values | changes)


def test_a_model_answers_by_its_template(chatty: Path) -> None:
    model: Any = heedful.load(chatty)
    asked = [[{"role": "user", "content": f"say {word}"}] for word in WORDS]
    answers = model.generate([model.chat_prompt(each) for each in asked], max_length=12)
    assert [(each.text, each.ended) for each in answers] == [(word, "end") for word in WORDS]


def test_a_server_answers_by_the_template(chatty: Path) -> None:
    scheduler = Scheduler(threads=1, positions=4096, most_waiting=9, observe=Metrics().observe)
    models = ServedModels([parse_model(f"talk={chatty}")])
    service = Service(models, scheduler, Limits(), SearchSettings())
    app = build_app(ServerParts(service, Metrics(), GateSettings()))
    values = {"model": "talk", "temperature": 0, "max_tokens": 12}
    values["messages"] = [{"role": "user", "content": "say blue"}]
    with TestClient(app, base_url="http://127.0.0.1") as client:
        whole = client.post("/v1/chat/completions", json=values).json()
        assert whole["choices"][0]["message"]["content"] == "blue"
        assert whole["choices"][0]["finish_reason"] == "stop"
        parts = client.post("/v1/chat/completions", json=values | {"stream": True}).text
        deltas = [json.loads(each[6:]) for each in parts.split("\n\n") if each[6:7] == "{"]
        texts = [each["choices"][0]["delta"].get("content", "") for each in deltas]
        assert "".join(texts) == "blue"


def test_an_export_keeps_the_template(chatty: Path, tmp_path: Path) -> None:
    _, tokenizers = load_model(chatty)
    assert tokenizers is not None
    assert tokenizers.chat == DEFAULT_TEMPLATE
    export_model(chatty, tmp_path / "theirs")
    imported = import_model(tmp_path / "theirs").tokenizers
    assert imported is not None
    assert imported.chat == DEFAULT_TEMPLATE
    # An older form: a field of tokenizer_config.json.
    (tmp_path / "theirs" / "chat_template.jinja").unlink()
    file = tmp_path / "theirs" / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    file.write_text(json.dumps(settings | {"chat_template": "{{ messages }}"}))
    imported = import_model(tmp_path / "theirs").tokenizers
    assert imported is not None
    assert imported.chat == "{{ messages }}"


def test_the_loss_is_that_of_single_answers(folder: Path, chatty: Path) -> None:
    settings = preferences(folder, chatty)
    task = prepare_task(folder / "none", settings, None, Events([]))
    assert isinstance(task.objective, PreferenceObjective)
    batch = task.source.batch(0, 0)
    assert isinstance(batch, PreferenceBatch)
    model: Any = task.new_model().eval()
    first = task.objective.loss(model, batch, LossContext(1))
    # Equal to its reference, a model prefers neither.
    assert float(first.loss_sum.detach()) == pytest.approx(len(batch.ids) * math.log(2), rel=1e-5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))

    def log_probability(of: Any, row: int, segment: int) -> float:
        own = (batch.segments[row] == segment) & (batch.positions[row] >= 0)
        states = of(batch.ids[row][own][None])
        targets = batch.targets[row][own]
        scores = F.log_softmax(of.logits(states)[0], -1)
        learned = targets != NO_TARGET
        return float(scores[learned].gather(-1, targets[learned][:, None]).sum())

    with torch.no_grad():
        expected = 0.0
        for row in range(len(batch.ids)):
            chosen, rejected = (
                log_probability(model, row, n) - log_probability(task.objective.reference, row, n)
                for n in (0, 1)
            )
            margin = torch.tensor(settings.objective.beta * (chosen - rejected))
            expected -= float(F.logsigmoid(margin))
        found = task.objective.loss(model, batch, LossContext(1))
        parts = [
            task.objective.loss(model, batch.part(n, n + 1), LossContext(1))
            for n in range(len(batch.ids))
        ]
    assert float(found.loss_sum) == pytest.approx(expected, rel=1e-4)
    assert sum(float(part.loss_sum) for part in parts) == pytest.approx(expected, rel=1e-4)
    assert sum(part.tokens for part in parts) == found.tokens == len(batch.ids)


@pytest.mark.parametrize("rank", [0, 2])
def test_margins_and_divergence_rise(folder: Path, chatty: Path, rank: int) -> None:
    lora = {"lora": {"rank": rank}} if rank else {}
    settings = preferences(folder, chatty, **lora)
    result = run_training(folder / f"dpo{rank}", settings, events=Events([]))
    assert result.scores["loss"] < math.log(2)
    assert result.scores["accuracy"] == 1
    assert result.scores["margin"] > 0
    assert result.scores["kl"] > 0
    (answer,) = heedful.load(folder / f"dpo{rank}").generate(["x"], max_length=3)
    assert len(answer.tokens) <= 3


def test_a_resumed_run_is_the_same(folder: Path, chatty: Path, tmp_path: Path) -> None:
    run_training(tmp_path / "whole", preferences(folder, chatty), events=Events([]))
    part = preferences(folder, chatty, max_steps=8)
    run_training(tmp_path / "parts", part, events=Events([]))
    whole = preferences(folder, chatty)
    run_training(tmp_path / "parts", whole, resume=True, events=Events([]))
    assert noted_losses(tmp_path / "parts") == noted_losses(tmp_path / "whole")


@pytest.mark.parametrize(
    ("changes", "error", "told"),
    [
        ({"init": None}, ConfigError, "--init"),
        ({"data": {"max_length": 8}}, DataError, r"preferences\.jsonl:\d+.*more than 8"),
        ({"data": {"batch_tokens": 66}}, ConfigError, "batch_tokens"),
        ({"validation": {"metrics": ["bleu"], "choose_by": "loss"}}, ConfigError, "margin"),
    ],
)
def test_what_cannot_be_learned_is_refused(
    folder: Path, chatty: Path, tmp_path: Path, changes: Any, error: Any, told: str
) -> None:
    settings = preferences(folder, chatty)
    data = {**settings.data.model_dump(exclude_unset=True), **changes.pop("data", {})}
    if data["batch_tokens"] == 66:
        data["train"] = [{"file": write_lines(tmp_path / "long.jsonl", LONG)}]
    with pytest.raises(error, match=told):
        run_training(
            tmp_path / "run", preferences(folder, chatty, data=data, **changes), events=Events([])
        )


LONG = {"prompt": "say red red red", "chosen": "red", "rejected": "red red"}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ({"prompt": "a", "chosen": "b"}, "no rejected answer"),
        ({"prompt": "a", "chosen": "b", "rejected": "b "}, "are the same"),
        ({"chosen": "b", "rejected": "c"}, "There are no messages|no text"),
    ],
)
def test_a_wrong_preference_is_named(
    folder: Path, chatty: Path, tmp_path: Path, line: Any, told: str
) -> None:
    file = write_lines(tmp_path / "p.jsonl", LONG, line)
    data = {"train": [{"file": file}], "max_length": 64, "batch_tokens": 256}
    with pytest.raises(DataError, match=told) as raised:
        run_training(tmp_path / "run", preferences(folder, chatty, data=data), events=Events([]))
    assert "p.jsonl:2" in str(raised.value)
