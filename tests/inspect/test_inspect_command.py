"""`heedful inspect`: the picture, JSON, files, and what is refused."""

from __future__ import annotations

import itertools
import json
import re

import numpy as np
import pytest

from heedful import inspect
from heedful.cli.main import main
from heedful.inspect.attention_maps import AttentionMap, draw_attention
from heedful.models.checkpoint import save_model


@pytest.fixture(scope="module")
def models(toys, tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    made = {"t": toys.translator(), "lm": toys.causal_lm(), "enc": toys.encoder()}
    for name, subject in (made | {"vit": toys.vision()}).items():
        save_model(subject.model, subject.tokenizers, place / name)
    return place


@pytest.fixture
def run(models, capsys, monkeypatch):
    monkeypatch.chdir(models)
    monkeypatch.setenv("COLUMNS", "80")

    def run_it(*words):
        capsys.readouterr()
        status = main(["inspect", *words])
        return status, *capsys.readouterr()

    return run_it


def test_the_picture_is_the_mean_of_what_was_asked_for(run, toys):
    status, out, err = run(
        "t", "abc", "--target", "fg", "--layer", "2", "--head", "1", "--head", "3"
    )
    assert (status, err) == (0, "")
    subject = toys.translator()
    found = inspect.attention(subject, inspect.read(subject, "abc", "fg"), layers=[2], heads=[1, 3])
    assert out == draw_attention(found, width=80) + "\n"
    title, *table = out.splitlines()
    most = found.weights.mean((0, 1)).max()
    assert "layer 2, mean of heads 1, 3" in title
    assert f"darkest is {most:.2f}" in title
    assert [line.split()[0] for line in table[-3:]] == ["f", "g", "</s>"]


def test_json_has_every_head(run, toys, tmp_path):
    status, out, _ = run("t", "abc", "--json")
    found = json.loads(out)
    subject = toys.translator()
    reading = inspect.read(subject, "abc")
    assert status == 0
    assert out.count("\n") == 1
    assert (found["text"], found["target"], found["part"]) == ("abc", reading.target, "cross")
    expected = inspect.attention(subject, reading)
    np.testing.assert_array_equal(np.array(found["weights"], np.float32), expected.weights)
    file, report = tmp_path / "map.json", tmp_path / "report.json"
    status, out, _ = run("t", "abc", "-o", str(file), "--report", str(report))
    assert (status, out) == (0, "")
    assert json.loads(file.read_text()) == found
    told = json.loads(report.read_text())
    assert (told["command"], told["tokens"]) == ("inspect", reading.length)


def test_other_models(run):
    status, out, _ = run("enc", "ab cd", "--json", "--layer", "1")
    found = json.loads(out)
    assert (status, found["part"], found["target"]) == (0, "encoder", None)
    assert np.array(found["weights"]).shape[:2] == (1, 4)
    _, out, _ = run("lm", "ab", "--continue", "3", "--json")
    found = json.loads(out)
    assert found["part"] == "decoder"
    assert 3 <= len(found["rows"]) <= 6
    assert found["rows"][1:3] == ["a", "b"]


def test_shapes(run):
    status, out, _ = run("t", "abc", "--target", "f", "--shapes")
    lines = dict(line.split("  ", 1) for line in out.splitlines())
    assert status == 0
    assert next(iter(lines)).startswith("encoder.embedding")
    shown = {address.strip(): shape.strip() for address, shape in lines.items()}
    assert shown["decoder.0.cross.weights"] == "1 × 4 × 2 × 4"
    _, out, _ = run("t", "abc", "--target", "f", "--shapes", "--json")
    assert json.loads(out)["shapes"]["decoder.0.cross.weights"] == [1, 4, 2, 4]


@pytest.mark.parametrize(
    ("words", "draw"),
    [
        ([], lambda charts, found: charts.matrix(found)),
        (["--layer", "1", "--head", "2"], lambda charts, found: charts.matrix(found)),
        (["--layer", "1", "--layer", "2"], lambda charts, found: charts.grid(found)),
        (["--view", "heads"], lambda charts, found: charts.grid(found)),
        (["--layer", "0", "--layer", "1", "--view", "matrix"], lambda c, found: c.matrix(found)),
        (
            ["--layer", "0", "--head", "1", "--head", "2", "--view", "lines"],
            lambda charts, found: charts.lines(found, each=True),
        ),
        (["--view", "lines"], lambda charts, found: charts.lines(found)),
    ],
)
def test_a_chart_is_the_librarys(words, draw, run, toys, tmp_path, monkeypatch):
    from heedful.apps import charts

    written = []
    monkeypatch.setattr(charts, "save", lambda chart, path: written.append((chart, path)))
    file = tmp_path / "x.html"
    assert run("t", "abc", *words, "-o", str(file)) == (0, "", f"Wrote {file}.\n")
    subject = toys.translator()
    asked = {"layers": [], "heads": []}
    for flag, value in itertools.pairwise(words):
        if flag in ("--layer", "--head"):
            asked[flag[2:] + "s"].append(int(value))
    chosen = {name: numbers or None for name, numbers in asked.items()}
    found = inspect.attention(subject, inspect.read(subject, "abc"), **chosen)
    ((chart, path),) = written
    # Selections are numbered as they are made, so that charts can stand side by side.
    drawn, expected = (
        re.sub(r"param_\d+|view_\d+", "", json.dumps(c.to_dict()))
        for c in (chart, draw(charts, found))
    )
    assert (drawn, path) == (expected, file)


@pytest.mark.parametrize("kind", ["svg", "png", "html"])
def test_charts_are_written(kind, run, tmp_path):
    file = tmp_path / f"x.{kind}"
    status, out, err = run("t", "abc", "--target", "fg", "-o", str(file), "--json")
    assert (status, err) == (0, "")
    assert json.loads(out)["rows"] == ["f", "g", "</s>"]
    start = {"svg": b"<svg", "png": b"\x89PNG\r\n\x1a\n", "html": b"<!DOCTYPE html>"}[kind]
    assert file.read_bytes().startswith(start)
    assert list(tmp_path.iterdir()) == [file]
    assert f"Wrote {file}." in run("t", "abc", "-o", str(file))[2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["t", " "], "There is no text to look at"),
        (["t", "a" * 100_000], "more than the 32"),
        (["lm", "ab", "--part", "cross"], "no cross attention. It has: decoder"),
        (["t", "ab", "--layer", "3"], "There is no layer with index 3. Indices go from 0 to 2"),
        (["t", "ab", "--part", "middle"], "part"),
        (["vit", "ab"], "takes no text"),
        (["t", "ab", "--continue", "3"], "Only a language model continues"),
        (["lm", "ab", "--continue", "3", "--target", "c"], "not both"),
        (["lm", "ab", "--continue", "0"], "max_length"),
        (["t", "ab", "-o", "x.csv"], "Name a .json file, or .html, .png or .svg for a chart"),
        (["t", "ab", "-o", "x.png", "--shapes"], "Shapes are no chart"),
        (["t", "ab", "-o", "x.json", "--view", "lines"], "Only a chart of attention has a view"),
        (["t", "ab", "--view", "lines"], "Only a chart of attention has a view"),
        (["t", "ab", "-o", "x.png", "--view", "circle"], "circle"),
        (["t", "ab", "-o", "no/x.png"], "No such directory"),
        (
            [
                "t",
                "abc",
                "-o",
                "x.png",
                "--view",
                "lines",
                "--layer",
                "0",
                "--layer",
                "1",
                "--layer",
                "2",
            ],
            "cannot be told apart",
        ),
        (["t", "ab", "-o", "no/x.json"], "No such directory"),
        (["nowhere", "ab"], "nowhere"),
    ],
)
def test_what_is_refused(words, message, run, models):
    before = sorted(models.iterdir())
    status, out, err = run(*words)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert sorted(models.iterdir()) == before


def test_pieces_that_would_move_the_cursor_are_shown_otherwise():
    pieces = ("a\nb", "\t", "\u202ex", "", "日本")
    weights = np.full((1, 1, 5, 5), 0.2, np.float32)
    drawn = draw_attention(AttentionMap("encoder", (0,), (0,), pieces, pieces, weights), width=60)
    assert not {"\t", "\u202e"} & set(drawn)
    assert "a\\nb" in drawn
    assert "日本" in drawn
    assert max(map(len, drawn.splitlines()[1:])) <= 60
