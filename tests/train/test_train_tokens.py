"""Token sequences through the trainer: what a batch learns, and what is refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heedful.apps.evaluation.record_likelihood import record_likelihood, record_scores
from heedful.data.batches import NO_TARGET
from heedful.data.encoded_records import RecordPairs, RecordRows
from heedful.data.encoded_texts import encode_texts
from heedful.data.record_files import RecordReader
from heedful.errors import UserError
from heedful.events import Events
from heedful.pipelines.any_pipeline import load_generator
from heedful.text.field_tokenizer import FieldTokenizer
from heedful.text.token_fields import TokenField
from heedful.train.run import run_training
from heedful.train.run_settings import RunSettings
from heedful.train.training_memory import likely_spec

from .conftest import noted_losses, short_run, write_text

SHAPE = {"width": 16, "decoder_layers": 1, "num_heads": 2, "feedforward": 32}
FIELDS = ("kind:3:1:given", "notes:5:any")


def write_records(path: Path, seed: int, count: int) -> Path:
    draw = random.Random(seed)
    records = [
        {"kind": draw.randrange(3), "notes": [draw.randrange(5) for _ in range(draw.randint(1, 9))]}
        for _ in range(count)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def settings(folder: Path, **changes: Any) -> RunSettings:
    data = {
        "train": [{"file": str(write_records(folder / "train.jsonl", 1, 100))}],
        "valid": [{"file": str(write_records(folder / "valid.jsonl", 2, 10))}],
        "max_length": 12,
        "batch_tokens": 64,
        **changes.pop("data", {}),
    }
    return short_run("tokens", SHAPE, data, {"tokens": {"fields": FIELDS}} | changes)


def test_a_stopped_and_resumed_run_is_the_same(tmp_path: Path) -> None:
    whole = settings(tmp_path)
    run_training(tmp_path / "whole", whole, events=Events([]))
    run_training(tmp_path / "parts", settings(tmp_path, max_steps=10), events=Events([]))
    run_training(tmp_path / "parts", whole, resume=True, events=Events([]))
    assert noted_losses(tmp_path / "parts") == noted_losses(tmp_path / "whole")


def test_a_batch_learns_what_is_not_given(tmp_path: Path) -> None:
    fields = FieldTokenizer([TokenField.read(text) for text in FIELDS])
    path = tmp_path / "a.jsonl"
    path.write_text('{"kind": 2, "notes": [4, 0, 1]}\n{"kind": 0, "notes": [3]}\n')
    rows = RecordRows(encode_texts([RecordReader(path)], fields, tmp_path / "c"), fields, 12)
    batch = rows.batch(np.array([1, 0]))
    ids = fields.encode_record({"kind": 2, "notes": [4, 0, 1]}).tolist()
    assert batch.ids.tolist()[1] == [fields.bos, *ids]
    assert batch.targets.tolist()[1] == [NO_TARGET, *ids[1:], fields.eos]
    short = fields.encode_record({"kind": 0, "notes": [3]}).tolist()
    assert batch.ids.tolist()[0][:3] == [fields.bos, *short]
    assert batch.targets.tolist()[0] == [NO_TARGET, short[1], fields.eos, NO_TARGET, NO_TARGET]
    assert batch.positions.tolist()[0] == [0, 1, 2, -1, -1]
    assert batch.target_tokens == int((batch.targets != NO_TARGET).sum()) == 6
    assert rows.line_of(int(batch.indices[0])) == f"{path}:2"
    assert not batch.counted
    assert rows.batch(np.array([0])).counted


ANSWERS = ("kind:3:1", "notes:5:any", "ask:3:1:given", "end:2:2")


def write_answers(path: Path, count: int = 60) -> Path:
    """Records of four fields."""
    lines = []
    for line in write_records(path, 3, count).read_text().splitlines():
        record = json.loads(line)
        lines.append(json.dumps({**record, "ask": record["kind"], "end": [0, 1]}))
    path.write_text("\n".join(lines) + "\n")
    return path


def answers(
    folder: Path, source: tuple[str, ...] = ("notes",), valid: Any = (), **changes: Any
) -> RunSettings:
    data = {"train": [{"file": str(write_answers(folder / "answers.jsonl"))}], "valid": valid}
    tokens = {"fields": ANSWERS, "source": source}
    shape = {**SHAPE, "encoder_layers": 1, "positions": "sinusoidal", **changes.pop("model", {})}
    return settings(folder, data=data, tokens=tokens, model=shape, **changes)


def test_an_encoder_reads_some_fields_and_a_batch_learns_the_others(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"kind": 2, "notes": [4, 0, 1, 1, 2], "ask": 1, "end": [0, 1]}\n'
        '{"kind": 0, "notes": [3], "ask": 2, "end": [1, 1]}\n'
    )
    whole = FieldTokenizer([TokenField.read(text) for text in ANSWERS])
    read, written = whole.only({"notes"}), whole.only({"kind", "ask", "end"})
    texts = [encode_texts([RecordReader(path)], side, tmp_path / "c") for side in (written, read)]
    rows = RecordPairs(texts[0], written, 12, texts[1], read)
    # The longer side counts: five notes and an end, or a beginning and four values.
    assert rows.sizes.tolist() == [6, 5]
    batch = rows.batch(np.array([1, 0]))
    assert batch.source.tolist() == [
        [*read.encode_record({"notes": [3]}), read.eos, *[read.pad] * 4],
        [*read.encode_record({"notes": [4, 0, 1, 1, 2]}), read.eos],
    ]
    ids = written.encode_record({"kind": 2, "ask": 1, "end": [0, 1]}).tolist()
    assert batch.target_input.tolist()[1] == [written.bos, *ids]
    # A condition has no loss, nor an end that follows from the shape.
    assert batch.target_output.tolist()[1] == [ids[0], NO_TARGET, *ids[2:], NO_TARGET]
    assert batch.target_tokens == 6
    assert batch.part(0, 1).target_tokens == 3
    assert rows.line_of(int(batch.indices[0])) == f"{path}:2"


def test_a_run_with_an_encoder_resumes_and_is_measured_as_it_was_validated(tmp_path: Path) -> None:
    valid = write_answers(tmp_path / "held-out.jsonl", 9)
    whole = answers(tmp_path, valid=({"file": str(valid)},))
    summary = run_training(tmp_path / "whole", whole, events=Events([]))
    run_training(tmp_path / "parts", answers(tmp_path, max_steps=10), events=Events([]))
    run_training(tmp_path / "parts", whole, resume=True, events=Events([]))
    assert noted_losses(tmp_path / "parts") == noted_losses(tmp_path / "whole")
    pipeline = load_generator(tmp_path / "whole", device="cpu", precision="fp32")
    losses = record_likelihood(pipeline, valid.read_text().splitlines())
    # The condition is not measured, and neither is an end that follows from the shape.
    assert losses.keys() == {"kind", "end"}
    assert record_scores(losses, {})["nats_per_value"] == pytest.approx(
        summary.scores["loss"], abs=1e-4
    )


def test_memory_is_that_of_the_model_that_is_trained(tmp_path: Path) -> None:
    assert likely_spec(answers(tmp_path)).kind == "translator"
    assert likely_spec(settings(tmp_path)).kind == "causal_lm"


@pytest.mark.parametrize(
    ("source", "changes", "told"),
    [
        (("note",), {}, r"no field 'note' for the encoder.*'notes'"),
        (("kind", "notes", "ask", "end"), {}, "read or given"),
        (("kind", "notes", "end"), {}, "read or given"),
        (("notes",), {"model": {"positions": "axes"}}, "no encoder"),
    ],
)
def test_fields_that_no_encoder_can_read_are_named(
    tmp_path: Path, source: tuple[str, ...], changes: dict[str, Any], told: str
) -> None:
    wrong = answers(tmp_path, source, **changes)
    with pytest.raises(UserError, match=told):
        run_training(tmp_path / "run", wrong, events=Events([]))


def test_a_run_begins_with_a_model_of_the_same_fields_only(tmp_path: Path) -> None:
    run_training(tmp_path / "read", answers(tmp_path), events=Events([]))
    begun = settings(tmp_path, init=str(tmp_path / "read"), model={})
    with pytest.raises(UserError, match=r"reads notes.*--tokens\.source notes"):
        run_training(tmp_path / "a", begun, events=Events([]))
    run_training(tmp_path / "plain", settings(tmp_path), events=Events([]))
    begun = begun.model_copy(
        update={"init": str(tmp_path / "plain"), "tokens": answers(tmp_path).tokens}
    )
    with pytest.raises(UserError, match=r"reads no fields.*Leave tokens\.source out"):
        run_training(tmp_path / "b", begun, events=Events([]))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"data": {"max_length": 5}}, r"train\.jsonl:\d+: The sequence has"),
        ({"tokens": {"fields": ("kind:2:1", "notes:5")}}, r"train\.jsonl:\d+: .*a value 2"),
        ({"tokens": {"fields": ("kind:3:1", "note:5")}}, r"no field 'note'\. Did you mean 'notes'"),
        ({"tokens": {"fields": ("kind:3:1", "notes")}}, "no field of a sequence"),
        ({"tokens": {"fields": ("kind:3:1", "notes:5:900")}}, "no room for a sequence"),
        ({"model": {**SHAPE, "memory": 8, "positions": "none"}}, "read as a whole"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        run_training(tmp_path / "run", settings(tmp_path, **changes), events=Events([]))


def test_a_model_of_texts_reads_no_records(tmp_path: Path) -> None:
    text = {"train": [{"file": write_text(tmp_path / "a.txt", 1, 50)}], "max_length": 16}
    plain = short_run("causal_lm", SHAPE, text, {"tokenizer": {"kind": "characters"}})
    run_training(tmp_path / "text", plain, events=Events([]))
    begun = settings(tmp_path, init=str(tmp_path / "text"))
    with pytest.raises(UserError, match="reads texts"):
        run_training(tmp_path / "run", begun, events=Events([]))


def test_axes_and_every_position_scheme_train(tmp_path: Path) -> None:
    """The loss at the start is that of a guess, whichever the positions are."""
    for positions in ("axes", "relative_keys", "rotary", "learned"):
        torch.manual_seed(0)
        run = tmp_path / positions
        changed = settings(tmp_path, model={**SHAPE, "positions": positions}, max_steps=2)
        summary = run_training(run, changed, events=Events([]))
        assert summary.scores["loss"] < 4, positions
