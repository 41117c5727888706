"""Reward models, and answers that are rewarded (GRPO)."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import heedful
from heedful.cli.main import main
from heedful.data.batches import NO_TARGET
from heedful.errors import ConfigError, DataError, ModelError
from heedful.events import Events
from heedful.models.checkpoint import load_model
from heedful.train.objective import LossContext
from heedful.train.preferences.group_loss import group_advantages, group_loss
from heedful.train.preferences.policy_objective import PolicyObjective
from heedful.train.preferences.rollouts import PromptBatch, log_probabilities
from heedful.train.run import run_training
from heedful.train.run_settings import RunSettings
from heedful.train.task import prepare_task

from .conftest import noted_losses, short_run

SHAPE = {"width": 32, "decoder_layers": 2, "num_heads": 2, "feedforward": 64}
WORDS = ("red", "blue", "green", "grey")

REWARDS = st.lists(
    st.lists(st.floats(-9, 9, width=32), min_size=3, max_size=3), min_size=1, max_size=4
)
ROW = st.lists(st.floats(-4, 0), min_size=5, max_size=5)
ROWS = st.lists(ROW, min_size=3, max_size=3)


@given(REWARDS)
def test_advantages_of_a_group_sum_to_zero(rewards: list[list[float]]) -> None:
    found = group_advantages(torch.tensor(rewards)).double()
    assert torch.allclose(found.sum(1), torch.zeros(len(rewards)).double(), atol=1e-5)
    order = torch.tensor(rewards).sort(dim=1, stable=True).indices
    assert bool((found.gather(1, order).diff(dim=1) >= 0).all())


@given(st.floats(-9, 9, width=32), st.integers(2, 7))
def test_equal_rewards_give_no_advantage(reward: float, group: int) -> None:
    assert not group_advantages(torch.full((2, group), reward)).any()


def gradient(
    ours: Any, old: Any, reference: Any, advantages: Any, real: Any, clip: float, beta: float
) -> Any:
    """The derivative of the summed loss, term by term from equations 3 and 4 of Shao 2024."""
    result = np.zeros_like(ours)
    for n, t in zip(*real.nonzero(), strict=True):
        ratio, gain = math.exp(ours[n, t] - old[n, t]), advantages[n]
        # Beyond 1 + ε there is nothing to gain from more, and below 1 − ε nothing from less.
        flat = ratio > 1 + clip if gain > 0 else ratio < 1 - clip
        result[n, t] -= 0.0 if flat else gain * ratio
        result[n, t] += beta * (1 - math.exp(reference[n, t] - ours[n, t]))
        result[n, t] /= real[n].sum()
    return result


@settings(deadline=None)
@given(
    ROWS,
    ROWS,
    ROWS,
    st.lists(st.floats(-2, 2), min_size=3, max_size=3),
    st.sampled_from([0.1, 0.2, 0.7]),
    st.sampled_from([0.01, 0.5]),
    st.integers(1, 5),
)
def test_the_gradient_is_that_of_the_equations(
    ours: Any, old: Any, reference: Any, advantages: Any, clip: float, beta: float, length: int
) -> None:
    arrays = [np.array(each) for each in (ours, old, reference, advantages)]
    real = np.arange(5)[None, :] < np.array([[length], [5], [1]])
    ratios = np.exp(arrays[0] - arrays[1])
    # At the very edge of the clipping the derivative jumps.
    arrays[0][np.abs(np.abs(ratios - 1) - clip) < 1e-6] += 1e-3
    tensors = [torch.from_numpy(each) for each in arrays]
    tensors[0].requires_grad_()
    found = group_loss(*tensors, torch.from_numpy(real), clip=clip, beta=beta)
    found.losses.sum().backward()
    assert tensors[0].grad is not None
    expected = gradient(*arrays, real, clip, beta)
    np.testing.assert_allclose(tensors[0].grad.numpy(), expected, rtol=1e-9, atol=1e-12)
    apart = np.where(real, arrays[0] - arrays[2], 0).sum(1)
    np.testing.assert_allclose(found.divergence.detach().numpy(), apart, atol=1e-12)


def write_lines(path: Path, *lines: object) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rewards")


@pytest.fixture(scope="module")
def chatty(folder: Path) -> Path:
    """A run that says the word that it is told, once or twice."""
    chats = [
        {"prompt": f"say {word}", "answer": " ".join([word] * times)}
        for word in WORDS
        for times in (1, 2)
    ] * 8
    data = {"train": [{"file": write_lines(folder / "chats.jsonl", *chats)}]}
    data |= {"max_length": 64, "batch_tokens": 256}
    changes = {"tokenizer": {"kind": "characters"}, "max_steps": 120}
    run_training(folder / "chatty", short_run("causal_lm", SHAPE, data, changes), events=Events([]))
    return folder / "chatty"


def task_settings(folder: Path, chatty: Path, task: str, **changes: Any) -> RunSettings:
    lines = [
        {"prompt": f"say {word}", "answer": word, "chosen": word, "rejected": f"{word} {word}"}
        for word in WORDS
    ]
    data = {"train": [{"file": write_lines(folder / "lines.jsonl", *lines)}], "max_length": 64}
    values = {"init": str(chatty), "tokenizer": {}, "model": {}, "max_steps": 12}
    values |= {"schedule": {"warmup_steps": 2, "peak_learning_rate": 0.001}}
    values |= {"validation": {"every_steps": 6}, "checkpoint": {"every_steps": 6}}
    data |= {"valid": data["train"], "batch_tokens": 2048} | changes.pop("data", {})
    if task == "grpo":
        own = {"reward": "length", "answer_tokens": 12, **changes.pop("grpo", {})}
        values["grpo"] = {name: value for name, value in own.items() if value is not None}
    return short_run(task, SHAPE, data, values | changes)


@pytest.fixture(scope="module")
def judge(folder: Path, chatty: Path) -> Path:
    """A reward model that prefers a word to the same twice."""
    result = run_training(
        folder / "judge", task_settings(folder, chatty, "reward"), events=Events([])
    )
    assert result.scores["accuracy"] == 1
    assert result.scores["margin"] > 0.1
    return folder / "judge"


def conversation(word: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"say {word}"}, {"role": "assistant", "content": answer}]


def test_a_reward_model_rewards_alike_everywhere(
    judge: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [conversation(word, answer) for word in WORDS for answer in (word, f"{word} {word}")]
    model: Any = heedful.load(judge)
    assert model.verbs == ("reward", "embed")
    rewards = model.reward(asked, batch_size=3)
    assert all(one > two for one, two in zip(rewards[::2], rewards[1::2], strict=True))
    assert model.reward(asked[3:4]) == pytest.approx(rewards[3:4], abs=1e-5)
    # The margins of training are differences of these.
    settings_ = RunSettings.parse({**_config(judge), "init": str(judge)})
    task = prepare_task(folder / "again", settings_, None, Events([]))
    network, _ = load_model(judge)
    found = task.objective.compare(network, task.source.batch(0, 0))  # type: ignore[attr-defined]
    differences = [one - two for one, two in zip(rewards[::2], rewards[1::2], strict=True)]
    assert sorted(found.margins.tolist()) == pytest.approx(sorted(differences), abs=1e-4)
    lines = write_lines(folder / "asked.jsonl", *({"messages": each} for each in asked))
    assert main(["score", str(judge), lines, "--json"]) == 0
    printed = [json.loads(line)["score"] for line in capsys.readouterr().out.splitlines()]
    assert printed == pytest.approx(rewards, abs=1e-4)


def _config(run_dir: Path) -> dict[str, Any]:
    import tomllib

    return tomllib.loads((run_dir / "config.toml").read_text())


def prepared(folder: Path, chatty: Path, **changes: Any) -> tuple[Any, PolicyObjective, Any]:
    asked = task_settings(folder, chatty, "grpo", **changes)
    task = prepare_task(folder / "none", asked, None, Events([]))
    assert isinstance(task.objective, PolicyObjective)
    return task.new_model().train(), task.objective, task.source.batch(0, 0)


def test_answers_have_the_probabilities_of_their_sampling(folder: Path, chatty: Path) -> None:
    model, objective, batch = prepared(folder, chatty)
    drawn, answers = objective.sampler.sample(model, batch.indices, 3, seed=5)
    with torch.no_grad():
        sums = log_probabilities(model, answers).sum(-1).flatten().tolist()
    # A search counts the end that the longest length forces; a loss on it would teach to end.
    scores = [sum(each.token_scores) if each.ended == "length" else each.score for each in drawn]
    assert sums == pytest.approx(scores, abs=1e-4)
    assert answers.reference.sum(-1).flatten().tolist() == pytest.approx(scores, abs=1e-4)
    words = [len(each.text.split()) for each in drawn]
    assert answers.rewards.flatten().tolist() == [-abs(count - 1) for count in words]
    assert ((answers.targets != NO_TARGET).sum(-1) >= 1).all()
    again, _ = objective.sampler.sample(model, batch.indices, 3, seed=5)
    assert [each.tokens for each in again] == [each.tokens for each in drawn]


def test_equal_rewards_change_nothing_but_the_divergence(folder: Path, chatty: Path) -> None:
    model, objective, batch = prepared(folder, chatty)
    objective.sampler.reward = lambda asked, answers: [0.3] * len(answers)
    loss = objective.loss(model, batch, LossContext(1))
    loss.loss_sum.backward()
    # The model is its own reference still.
    assert max(float(each.grad.abs().max()) for each in model.parameters()) < 1e-6
    with torch.no_grad():
        for each in model.parameters():
            each.mul_(1.02)
    model.zero_grad()
    objective.loss(model, batch, LossContext(1)).loss_sum.backward()
    assert max(float(each.grad.abs().max()) for each in model.parameters()) > 1e-5


def test_answers_are_used_again(folder: Path, chatty: Path) -> None:
    model, objective, batch = prepared(folder, chatty, grpo={"updates": 2})
    first = objective.loss(model, batch, LossContext(1))
    second = PromptBatch(batch.indices, batch.group, fresh=False)
    carried = first.carried_state
    again = objective.loss(model, second, LossContext(2, carried))
    assert float(again.loss_sum.detach()) == pytest.approx(float(first.loss_sum.detach()), abs=1e-5)
    assert torch.equal(again.carried_state["ids"], carried["ids"])
    # Parts of a batch find their own rows, in another order too.
    turned = PromptBatch(batch.indices.flip(0), batch.group, fresh=False)
    parts = [turned.part(0, 1), turned.part(1, len(batch.indices))]
    found = [objective.loss(model, part, LossContext(2, carried)) for part in parts]
    assert sum(each.tokens for each in found) == again.tokens
    total = sum(float(each.loss_sum.detach()) for each in found)
    assert total == pytest.approx(float(again.loss_sum.detach()), abs=1e-5)
    rows = torch.cat([each.carried_state["ids"] for each in found])
    assert torch.equal(rows.flip(0), carried["ids"])
    # After a failed update nothing is carried, so others are sampled.
    fresh = objective.loss(model, second, LossContext(2)).carried_state
    assert not torch.equal(fresh["ids"], carried["ids"])


@pytest.mark.parametrize("rank", [0, 2])
def test_the_reward_rises(folder: Path, chatty: Path, rank: int) -> None:
    changes: dict[str, Any] = {"lora": {"rank": rank}} if rank else {}
    schedule = {"warmup_steps": 2, "peak_learning_rate": 0.02 if rank else 0.002}
    changes |= {"max_steps": 12, "schedule": schedule}
    asked = task_settings(folder, chatty, "grpo", **changes)
    result = run_training(folder / f"grpo{rank}", asked, events=Events([]))
    events = [
        json.loads(line)
        for line in (folder / f"grpo{rank}" / "metrics.jsonl").read_text().splitlines()
    ]
    rewards = [event["reward"] for event in events if "event" not in event]
    # Half of the answers have a word too many at first.
    assert rewards[0] < -0.3
    assert sum(rewards[-4:]) / 4 > -0.1
    assert result.scores["kl"] > 0
    samples = [event["samples"] for event in events if event.get("event") == "samples"]
    assert [each["source"] for each in samples[0]] == [each["source"] for each in samples[-1]]
    (answer,) = heedful.load(folder / f"grpo{rank}").generate(["x"], max_length=3)
    assert len(answer.tokens) <= 3


def test_a_resumed_run_is_the_same(folder: Path, chatty: Path, tmp_path: Path) -> None:
    whole = task_settings(folder, chatty, "grpo", grpo={"updates": 2})
    run_training(tmp_path / "whole", whole, events=Events([]))
    # Stopped between two updates from the same answers.
    part = task_settings(folder, chatty, "grpo", grpo={"updates": 2}, max_steps=7)
    run_training(tmp_path / "parts", part, events=Events([]))
    run_training(tmp_path / "parts", whole, resume=True, events=Events([]))
    assert noted_losses(tmp_path / "parts") == noted_losses(tmp_path / "whole")


def test_other_models_reward(folder: Path, chatty: Path, judge: Path) -> None:
    labelled = folder / "labelled.tsv"
    labelled.write_text("".join(f"{word}\tshort\n{word} {word}\tlong\n" for word in WORDS) * 8)
    shape = {"width": 16, "encoder_layers": 1, "num_heads": 2, "feedforward": 32}
    data = {"train": [{"file": str(labelled)}], "max_length": 64, "batch_tokens": 512}
    changes = {"tokenizer": {"kind": "characters"}, "max_steps": 8}
    run_training(
        folder / "classifier", short_run("classify", shape, data, changes), events=Events([])
    )
    own = {"reward": "sentiment", "judge": str(folder / "classifier"), "label": "short"}
    model, objective, batch = prepared(folder, chatty, grpo=own)
    drawn, answers = objective.sampler.sample(model, batch.indices, 2, seed=1)
    texts = [each.text for each in drawn]
    labels = heedful.load(folder / "classifier").classify(texts)
    expected = [{each.label: each.probability for each in one}["short"] for one in labels]
    assert answers.rewards.flatten().tolist() == pytest.approx(expected, abs=1e-5)
    model, objective, batch = prepared(
        folder, chatty, grpo={"reward": "reward_model", "judge": str(judge)}
    )
    drawn, answers = objective.sampler.sample(model, batch.indices, 2, seed=1)
    words = [WORDS[number] for number in batch.indices.tolist() for _ in range(2)]
    pairs = zip(words, drawn, strict=True)
    rewards = heedful.load(judge).reward([conversation(word, each.text) for word, each in pairs])
    assert answers.rewards.flatten().tolist() == pytest.approx(rewards, abs=1e-4)
    model, objective, batch = prepared(folder, chatty, grpo={"reward": "exact"})
    right = [objective.sampler.prompts[number].asked for number in batch.indices.tolist()]
    answers_ = [str(each.answer) for each in right]
    assert objective.sampler.reward(right, answers_) == [1.0] * len(right)
    assert objective.sampler.reward(right[:2], [f" {answers_[0]}\n", f"{answers_[1]}s"]) == [
        1.0,
        0.0,
    ]


@pytest.mark.parametrize(
    ("changes", "error", "told"),
    [
        ({"init": None}, ConfigError, "--init"),
        ({"grpo": {"reward": None}}, ConfigError, "length, exact, sentiment"),
        ({"grpo": {"reward": "lenght"}}, ConfigError, "length"),
        ({"grpo": {"reward": "exact"}}, DataError, r"bare\.jsonl:1"),
        ({"grpo": {"reward": "exact", "words": 3}}, ConfigError, "grpo.words"),
        ({"grpo": {"reward": "sentiment"}}, ConfigError, "needs grpo.judge"),
        ({"grpo": {"reward": "reward_model", "judge": "JUDGE"}}, ModelError, "no reward head"),
        ({"grpo": {"answer_tokens": 60}}, DataError, r"bare\.jsonl:1.*|grpo.answer_tokens"),
        ({"data": {"batch_tokens": 64}}, ConfigError, "batch_tokens"),
        ({"grpo": {"updates": 2}, "optimizer": {"accumulate": 2}}, ConfigError, "accumulate"),
        ({"objective": {"reference": "OTHER"}}, ConfigError, "objective.reference"),
        ({"objective": {"reference": "JUDGE"}}, ConfigError, "no language model"),
        ({"parallel": {"tensor": 2}}, ConfigError, "parallel"),
    ],
)
def test_what_cannot_be_rewarded_is_refused(
    folder: Path, chatty: Path, tmp_path: Path, changes: Any, error: Any, told: str
) -> None:
    bare = [{"file": write_lines(tmp_path / "bare.jsonl", {"prompt": "say red"})}]
    data = {"train": bare, "valid": bare} | changes.pop("data", {})
    texts = {"train": [{"file": write_lines(tmp_path / "t.jsonl", {"text": "xyz"})}]}
    texts |= {"max_length": 64, "batch_tokens": 256}
    other = {"tokenizer": {"kind": "characters"}, "max_steps": 1}
    if "OTHER" in str(changes):
        run_training(tmp_path / "o", short_run("causal_lm", SHAPE, texts, other), events=Events([]))
    if "JUDGE" in str(changes):
        run_training(
            tmp_path / "m",
            short_run("masked_lm", SHAPE_OF_ENCODER, texts, other),
            events=Events([]),
        )
    named = str(changes).replace("OTHER", str(tmp_path / "o")).replace("JUDGE", str(tmp_path / "m"))
    changes = json.loads(named.replace("'", '"').replace("None", "null"))

    def refused() -> None:
        asked = task_settings(folder, chatty, "grpo", data=data, **changes)
        prepare_task(tmp_path / "run", asked, None, Events([]))

    with pytest.raises(error, match=told):
        refused()


SHAPE_OF_ENCODER = {"width": 16, "encoder_layers": 1, "num_heads": 2, "feedforward": 32}
