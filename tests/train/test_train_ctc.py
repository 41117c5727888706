"""Answers by CTC and rows of tokens, through the trainer: what is learned, and what is refused."""

from __future__ import annotations

import itertools
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.apps.evaluation.record_likelihood import answer_scores, record_likelihood, summed
from heedful.errors import UserError
from heedful.events import Events
from heedful.models.encoder_spec import EncoderSpec
from heedful.pipelines.any_pipeline import load_generator
from heedful.pipelines.ctc_answers import CTCPipeline
from heedful.train.objective import CTCObjective, LossContext
from heedful.train.run import run_training
from heedful.train.run_settings import RunSettings

from .conftest import noted_losses, short_run

SHAPE = {
    "width": 32,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "num_heads": 4,
    "feedforward": 64,
    "positions": "rotary",
    "dropout": 0.0,
}
FIELDS = ("sound:4:anyx3", "said:names:any")
NAMES = ("do", "re", "mi")


def record(draw: random.Random) -> dict[str, Any]:
    """Names in any order; each is a moment or two of loud places, with silence between some."""
    said = [draw.randrange(3) for _ in range(draw.randint(1, 4))]
    sound = [[0, 0, 0]]
    for before, each in itertools.pairwise([-1, *said]):
        if before == each or draw.random() < 0.3:
            sound.append([draw.randrange(2) for _ in range(3)])
        moment = [draw.randrange(2) for _ in range(3)]
        moment[each] = 3
        sound += [moment] * draw.randint(1, 2)
    return {"sound": sound, "said": [NAMES[each] for each in said]}


def write_sounds(path: Path, seed: int, count: int) -> Path:
    draw = random.Random(seed)
    path.write_text("".join(json.dumps(record(draw)) + "\n" for _ in range(count)))
    return path


def settings(folder: Path, **changes: Any) -> RunSettings:
    data = {
        "train": [{"file": str(write_sounds(folder / "train.jsonl", 1, 600))}],
        "valid": [{"file": str(write_sounds(folder / "valid.jsonl", 2, 60))}],
        "max_length": 64,
        "batch_tokens": 1500,
    }
    tokens = {"fields": FIELDS, "source": ("sound",), "rows": True, "writer": "ctc"}
    tokens |= changes.pop("tokens", {})
    rest = {
        "schedule": {"warmup_steps": 10, "peak_learning_rate": 0.01},
        "validation": {"every_steps": 500},
        "checkpoint": {"every_steps": 500, "average": "none"},
    }
    return short_run("tokens", SHAPE, data, {"tokens": tokens, **rest, **changes})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learned."""
    folder = tmp_path_factory.mktemp("ctc")
    run_training(folder / "run", settings(folder, max_steps=150), events=Events([]))
    return folder


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_what_is_said_is_learned_from_order_alone(run: Path) -> None:
    pipeline = load_generator(run / "run")
    assert isinstance(pipeline, CTCPipeline)
    assert isinstance(pipeline.spec, EncoderSpec)
    assert pipeline.spec.embedding.row_size == 3
    assert answer_scores(pipeline, lines_of(run / "valid.jsonl"))["exact"]["said"] >= 0.9


def test_losses_of_validation_and_of_evaluation_agree(run: Path) -> None:
    pipeline = load_generator(run / "run")
    losses = record_likelihood(pipeline, lines_of(run / "valid.jsonl"))
    valid = [
        json.loads(line)
        for line in lines_of(run / "run" / "metrics.jsonl")
        if '"validation"' in line
    ]
    measured = summed(losses).plain()["nats_per_value"]
    assert measured == pytest.approx(valid[-1]["loss"], rel=1e-4)


def test_batches_and_beams_change_no_score(run: Path) -> None:
    pipeline = load_generator(run / "run")
    asked = [
        json.dumps({"sound": json.loads(line)["sound"]})
        for line in lines_of(run / "valid.jsonl")[:12]
    ]
    together = pipeline.generate(asked)
    alone = pipeline.generate(asked, batch_size=1)
    for one, other in zip(together, alone, strict=True):
        assert one.text == other.text
        assert one.score == pytest.approx(other.score, abs=1e-4)
    several = pipeline.generate(asked, beam=6, n_best=3)
    for greedy, found in zip(together, several, strict=True):
        scores = [each.score for each in found.n_best]
        assert len({each.text for each in found.n_best}) == len(scores) > 1
        assert scores == sorted(scores, reverse=True)
        # A sum over alignments finds nothing worse than the best alignment's text.
        assert found.score >= greedy.score - 1e-4
        assert math.fsum(map(math.exp, scores)) <= 1 + 1e-6


def test_only_beams_are_settings_of_ctc(run: Path) -> None:
    pipeline = load_generator(run / "run")
    with pytest.raises(UserError, match="CTC") as error:
        pipeline.generate(['{"sound": [[0, 3, 0]]}'], sampling=True)
    assert error.value.where == "sampling"
    with pytest.raises(UserError, match="cannot continue") as error:
        pipeline.generate(['{"sound": [[0, 3, 0]], "said": ["re"]}'])
    assert error.value.where == "record 1"


def test_the_loss_is_the_sum_over_alignments() -> None:
    """Two frames with two labels and a blank, of a model that says the same everywhere."""

    class Model(torch.nn.Module):
        def forward(self, ids: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
            return ids

        def ctc_scores(self, ids: torch.Tensor, positions: torch.Tensor) -> Any:
            log_probs = torch.tensor([0.5, 0.3, 0.2]).log().expand(*ids.shape, 3)
            return log_probs, (positions >= 0).sum(1)

    class Batch:
        source = torch.zeros(2, 3, dtype=torch.int64)
        source_positions = torch.tensor([[0, 1, 2], [0, 1, -1]])
        targets = torch.tensor([[1, 2], [1, -1]])
        target_tokens = 3

    found = CTCObjective().loss(Model(), Batch(), LossContext(1))
    # 12 in three frames: 112, 122, -12, 1-2, 12-; 1 in two frames: 11, -1, 1-.
    first = 0.3 * 0.3 * 0.2 + 0.3 * 0.2 * 0.2 + 3 * 0.5 * 0.3 * 0.2
    second = 0.3 * 0.3 + 2 * 0.5 * 0.3
    assert found.loss_sum.item() == pytest.approx(-math.log(first) - math.log(second), rel=1e-5)
    assert found.tokens == 3


def test_an_answer_that_frames_do_not_permit_is_named(tmp_path: Path) -> None:
    made = settings(tmp_path)
    path = tmp_path / "train.jsonl"
    lines = lines_of(path)
    # Two rows and the end are three frames: "do re" fits with its end, "do do" does not.
    sound = [[3, 0, 0], [3, 0, 0]]
    lines[4] = json.dumps({"sound": sound, "said": ["do", "re"]})
    lines[6] = json.dumps({"sound": sound, "said": ["do", "do"]})
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError, match=r"needs 4 positions .* reads 3") as error:
        run_training(tmp_path / "run", made, events=Events([]))
    assert error.value.where == f"{path}:7"


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no encoder": ({"tokens": {"source": ()}}, "Without an encoder"),
    "two fields in rows": (
        {"tokens": {"fields": (*FIELDS, "more:3:1"), "source": ("sound", "more")}},
        "Rows are those of one field of numbers",
    ),
    "two answers": ({"tokens": {"fields": (*FIELDS, "more:3:any")}}, "CTC writes one field"),
    "an answer of a fixed length": (
        {"tokens": {"fields": ("sound:4:anyx3", "more:3:1")}},
        "CTC writes one field",
    ),
    "smoothing": ({"objective": {"label_smoothing": 0.1}}, "not smoothed"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_ctc_and_rows_cannot_do_is_refused(name: str, tmp_path: Path) -> None:
    changes, message = WRONG[name]
    made = settings(tmp_path, **changes)
    for part in ("train", "valid"):
        path = tmp_path / f"{part}.jsonl"
        lines = [json.dumps({**json.loads(line), "more": 1}) for line in lines_of(path)]
        path.write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError, match=message) as error:
        run_training(tmp_path / "run", made, events=Events([]))
    assert error.value.remedy


@pytest.mark.parametrize("writer", ["ctc", "decoder"])
def test_rows_go_on_after_a_stop_as_if_there_was_none(tmp_path: Path, writer: str) -> None:
    tokens = {"writer": writer}
    whole = settings(tmp_path, max_steps=8, tokens=tokens)
    run_training(tmp_path / "whole", whole, events=Events([]))
    run_training(
        tmp_path / "parts", settings(tmp_path, max_steps=4, tokens=tokens), events=Events([])
    )
    run_training(tmp_path / "parts", whole, resume=True, events=Events([]))
    assert noted_losses(tmp_path / "parts") == noted_losses(tmp_path / "whole")


def test_a_decoder_reads_rows_and_batches_change_nothing(tmp_path: Path) -> None:
    made = settings(tmp_path, max_steps=20, tokens={"writer": "decoder"})
    run_training(tmp_path / "run", made, events=Events([]))
    pipeline = load_generator(tmp_path / "run")
    asked = [
        json.dumps({"sound": json.loads(line)["sound"]})
        for line in lines_of(tmp_path / "valid.jsonl")[:6]
    ]
    together, alone = pipeline.generate(asked), pipeline.generate(asked, batch_size=1)
    assert [each.text for each in together] == [each.text for each in alone]
    ours, theirs = ([each.score for each in found] for found in (together, alone))
    assert ours == pytest.approx(theirs, abs=1e-4)
    model, ids, positions = pipeline.engine, torch.full((1, 7), 4), torch.arange(7)[None]
    with pytest.raises(UserError, match="rows of its source"):
        model.cross_attention(ids, positions, ids, positions)
