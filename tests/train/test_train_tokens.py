"""Token sequences through the trainer: what a batch learns, and what is refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heedful.data.batches import NO_TARGET
from heedful.data.encoded_records import RecordRows
from heedful.data.encoded_texts import encode_texts
from heedful.data.record_files import RecordReader
from heedful.errors import UserError
from heedful.events import Events
from heedful.text.field_tokenizer import FieldTokenizer
from heedful.text.token_fields import TokenField
from heedful.train.run import run_training
from heedful.train.run_settings import RunSettings

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
