"""Pictures as codes through the command line: learned, written, drawn for captions, drawn back."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from heedful.models.build import build_model
from heedful.models.checkpoint import save_model
from heedful.models.model_spec import parse_spec

SMALL = "--model.width 32 --model.num-heads 2 --model.feedforward 64 --model.dropout 0"
RATE = "--schedule.peak-learning-rate 0.01 --schedule.warmup-steps 10 --precision fp32"


def picture(draw: random.Random) -> dict[str, Any]:
    """A light square of 4 × 4 pixels at one of four places, and which."""
    row, column = draw.randrange(2), draw.randrange(2)
    image = [[200 * (r // 4 == row and c // 4 == column) for c in range(8)] for r in range(8)]
    return {"image": image, "caption": f"{('up', 'down')[row]} {('left', 'right')[column]}"}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("pictures") / "pictures.jsonl"
    draw = random.Random(1)
    file.write_text("".join(json.dumps(picture(draw)) + "\n" for _ in range(60)))
    return file


def test_pictures_are_drawn_for_captions(run, tmp_path: Path, pictures: Path) -> None:
    def done(*words: Any) -> Any:
        found = run(*words)
        assert found.status == 0, found.err
        return found

    codes, draw, records = (tmp_path / name for name in ("codes", "draw", "records.jsonl"))
    learn = f"{SMALL} {RATE} --model.encoder-layers 1 --model.decoder-layers 1 --images.channels 1"
    learn += " --images.codes 8 --images.code-width 4 --max-steps 60 --data.batch-tokens 80"
    done("train", codes, "--task", "autoencode", "--train", pictures, *learn.split())
    written = done("data", "codes", codes, pictures, "--out", records, "--json")
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    facts = json.loads(written.out)
    assert facts["records"] == len(lines) == 60
    assert facts["codes_used"] == len({n for each in lines for row in each["codes"] for n in row})
    assert {each["caption"] for each in lines} == {"up left", "up right", "down left", "down right"}
    fields = "caption:text:10:given codes:8:2x2"
    learn = f"{SMALL} {RATE} --model.decoder-layers 1 --model.positions axes --max-steps 80"
    learn += " --tokenizer.kind characters --data.batch-tokens 400 --data.max-length 12"
    words = ["--tokens.fields", *fields.split(), *learn.split()]
    done("train", draw, "--task", "tokens", "--train", records, *words)
    asked = tmp_path / "asked.jsonl"
    asked.write_text("".join(f'{{"caption": "{c}"}}\n' for c in ("up left", "down right")))
    done("generate", draw, "-i", asked, "-o", tmp_path / "drawn.jsonl", "--beam", 1)
    done("data", "pictures", codes, tmp_path / "drawn.jsonl", "--out", tmp_path / "drawn")
    done("data", "pictures", codes, tmp_path / "drawn.jsonl", "--out", tmp_path / "rows.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    for number, (record, corner) in enumerate(zip(rows, ((0, 0), (7, 7)), strict=True), start=1):
        with Image.open(tmp_path / "drawn" / f"{number}.png") as drawn:
            assert drawn.size == (8, 8)
            values = [[drawn.getpixel((c, r)) for c in range(8)] for r in range(8)]
        assert values == record["image"]
        lightest = max((values[r][c], (r, c)) for r in (0, 7) for c in (0, 7))
        assert lightest[1] == corner
    assert [each["caption"] for each in rows] == ["up left", "down right"]


@pytest.fixture(scope="module")
def codes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    block = {"self_attention": {"num_heads": 2}, "feedforward": {"width": 8}}
    stack = {"num_layers": 1, "block": block}
    sizes = {"width": 8, "image_size": 8, "patch_size": 4, "codes": 5, "code_width": 2}
    pixels = {"mean": [0.5], "std": [0.5]}
    values = {"kind": "autoencoder", "encoder": stack, "decoder": stack, "pixels": pixels, **sizes}
    folder = tmp_path_factory.mktemp("models") / "codes"
    torch.manual_seed(0)
    save_model(build_model(parse_spec(values, where="a test")), None, folder)
    return folder


@pytest.mark.parametrize(
    ("line", "flags", "said"),
    [
        (
            '{"codes": [[0, 5], [0, 0]]}',
            (),
            "drawn.jsonl:1: These are no codes of the model: 2 rows",
        ),
        ('{"codes": [[0, 1]]}', (), "whole numbers from 0 to 4"),
        ('{"codes": "no"}', (), "These are no codes"),
        ('{"notes": [[0, 0], [0, 0]]}', (), "These are no codes"),
        ('{"codes": [[0, 0], [0, 0]]}', ("--field", "image"), "These are no codes"),
        ("[1, 2", (), "drawn.jsonl:1"),
    ],
)
def test_codes_that_are_none_are_told(run, tmp_path, codes, line: str, flags, said: str) -> None:
    (tmp_path / "drawn.jsonl").write_text(line + "\n")
    for out in ("drawn", "drawn.out.jsonl"):
        wrong = run(
            *("data", "pictures", codes, tmp_path / "drawn.jsonl", "--out", tmp_path / out), *flags
        )
        assert (wrong.status, said in wrong.err) == (2, True), wrong.err
        assert not (tmp_path / out).exists()


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            '{"image": [[0, 1], [2]], "caption": "a"}',
            "pictures.jsonl:1: The rows of the image differ",
        ),
        ('{"image": [[0]]}', "pictures.jsonl:1: The line is no object with a caption"),
        ('{"image": [[300]], "caption": "a"}', "pictures.jsonl:1"),
    ],
)
def test_pictures_that_are_none_are_told(run, tmp_path, codes, lines: str, said: str) -> None:
    (tmp_path / "pictures.jsonl").write_text(lines + "\n")
    wrong = run("data", "codes", codes, tmp_path / "pictures.jsonl", "--out", tmp_path / "r.jsonl")
    assert (wrong.status, said in wrong.err) == (2, True), wrong.err
    assert not (tmp_path / "r.jsonl").exists()


def test_other_models_and_missing_images_are_told(run, tmp_path: Path, codes, pictures) -> None:
    out = tmp_path / "out.jsonl"
    wrong = run("data", "codes", "digits", pictures, "--out", out)
    assert (wrong.status, "is no autoencoder of images" in wrong.err) == (2, True), wrong.err
    wrong = run("data", "codes", codes, "--out", out)
    assert (wrong.status, "There are no images" in wrong.err) == (2, True), wrong.err
    wrong = run("data", "pictures", codes, tmp_path / "none.jsonl", "--out", out)
    assert (wrong.status, "No such file" in wrong.err) == (2, True), wrong.err
    out.write_text("kept")
    wrong = run("data", "pictures", codes, pictures, "--out", out)
    assert wrong.status == 2
    assert out.read_text() == "kept"
