"""Charts: their data are the library's, their files are whole, their pages ask nobody."""

from __future__ import annotations

import html.parser
import itertools
import json
import struct
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import altair as alt
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful import inspect
from heedful.apps import charts
from heedful.apps.charts.frame import SERIES
from heedful.errors import ConfigError, DataError, ModelError
from heedful.inspect.attention_maps import AttentionMap

ODD = (
    "a\nb",
    "\t",
    "\u202ex",
    "",
    "日本語",
    "قطة",
    "🐈‍⬛",
    "</script><b>",
    "\x00",
    "\ud800",
    " ",
    "é" * 99,
)
"""Pieces that end lines, scripts, or the patience of a reader."""


def rows_of(data) -> list[dict]:
    """A table as its rows."""
    return json.loads(data.values)


def table_of(chart) -> list[dict]:
    """The rows of a chart whose layers have one table."""
    return rows_of(chart.data)


def weights_of(data, *axes) -> np.ndarray:
    """A table as an array again."""
    rows = rows_of(data)
    numbers = [sorted({row[axis] for row in rows}) for axis in axes]
    found = np.zeros([len(each) for each in numbers], np.float32)
    for row in rows:
        found[tuple(n.index(row[a]) for n, a in zip(numbers, axes, strict=True))] = row["weight"]
    return found


def made(rows=5, columns=4, layers=(1, 3), heads=(0, 2, 5), part="cross", seed=0) -> AttentionMap:
    shape = (len(layers), len(heads), rows)
    weights = np.random.default_rng(seed).dirichlet(np.full(columns, 0.2), shape)
    names = [f"{side}{i}" for side, count in (("r", rows), ("c", columns)) for i in range(count)]
    return AttentionMap(
        part, layers, heads, tuple(names[:rows]), tuple(names[rows:]), weights.astype(np.float32)
    )


@pytest.fixture(scope="module")
def seen(toys):
    subject = toys.translator()
    return subject, inspect.read(subject, "abc", "fg")


# The data


def test_a_matrix_is_the_mean(seen):
    found = inspect.attention(*seen)
    chart = charts.matrix(found)
    np.testing.assert_array_equal(weights_of(chart.data, "row", "column"), found.mean())
    one = charts.matrix(found, layers=[2], heads=[1])
    np.testing.assert_array_equal(weights_of(one.data, "row", "column"), found.weights[2, 1])
    assert one.title.subtitle == ["layer 2, head 1"]


def test_a_grid_has_every_head_of_every_layer():
    found = made()
    chart = charts.grid(found)
    panel = chart.to_dict()
    assert (panel["facet"]["row"]["field"], panel["facet"]["column"]["field"]) == ("layer", "head")
    data = chart.data
    np.testing.assert_array_equal(weights_of(data, "layer", "head", "row", "column"), found.weights)
    assert {(row["layer"], row["head"]) for row in rows_of(data)} == set(
        itertools.product((1, 3), (0, 2, 5))
    )


def test_lines_are_the_weights_that_can_be_seen():
    found = made()
    drawn = rows_of(charts.lines(found, layers=[3], each=True).layer[0].data)
    expected = {
        (f"layer 3 head {head}", row, column): weight
        for h, head in enumerate((0, 2, 5))
        for (row, column), weight in np.ndenumerate(found.weights[1, h])
        if weight >= 0.02
    }
    assert {(d["head"], d["row"], d["column"]): np.float32(d["weight"]) for d in drawn} == expected
    mean = rows_of(charts.lines(found).layer[0].data)
    for line in mean:
        assert np.float32(line["weight"]) == found.mean()[line["row"], line["column"]]


def test_axes_name_the_tokens_of_every_place():
    spec = charts.matrix(made(rows=3, columns=2)).to_dict()
    across, down = spec["encoding"]["x"], spec["encoding"]["y"]
    assert across["axis"]["labelExpr"] == '["c0", "c1"][datum.value]'
    assert across["axis"]["values"] == across["scale"]["domain"] == [0, 1]
    assert down["axis"]["labelExpr"] == '["r0", "r1", "r2"][datum.value]'
    assert (down["axis"]["title"], across["axis"]["title"]) == ("writes", "reads")


def test_long_texts_keep_what_can_be_seen():
    found = made(rows=256, columns=256, layers=(0,), heads=(0,), part="encoder")
    chart = charts.matrix(found)
    drawn = {(r["row"], r["column"]): np.float32(r["weight"]) for r in rows_of(chart.data)}
    faintest = found.weights.max() / 256
    for place, weight in np.ndenumerate(found.mean()):
        assert weight < faintest or drawn[place] == weight
    assert len(drawn) < 256 * 256
    spec = chart.to_dict()
    assert spec["width"]["step"] * 256 <= 800
    axis = spec["encoding"]["x"]["axis"]  # labels do not run into each other
    assert axis["values"][1] * spec["width"]["step"] >= axis["labelFontSize"]


def test_what_is_too_large_is_refused():
    with pytest.raises(ConfigError, match="room for 600 tokens"):
        charts.matrix(made(rows=601, columns=2))
    even = np.full((2, 4, 160, 160), 1 / 160, np.float32)
    names = tuple("x" * 160)
    found = AttentionMap("encoder", (0, 1), (0, 1, 2, 3), names, names, even)
    with pytest.raises(ConfigError, match="204,800 cells"):
        charts.grid(found)
    assert len(rows_of(charts.matrix(found).data)) == 160 * 160
    with pytest.raises(ConfigError, match="told apart"):
        charts.lines(made(layers=(0, 1, 2)), each=True)
    with pytest.raises(ConfigError, match="no layer 2"):
        charts.matrix(made(), layers=[2])


def test_heads(toys):
    subject = toys.encoder()
    read = inspect.read_all(subject, ["abc abc", "de fg", "hi jk lm"] * 8)
    found = inspect.measure(subject, read, "encoder")
    labelled = table_of(charts.heads(found))
    assert [(r["layer"], r["head"]) for r in labelled] == [(h.layer, h.head) for h in found.heads]
    assert [r["name"] for r in labelled] == [h.label.kind if h.label else "" for h in found.heads]
    for of in ("entropy", "offset"):
        rows = table_of(charts.heads(found, of))
        assert [row["value"] for row in rows] == [getattr(head, of) for head in found.heads]
    shares = table_of(charts.heads(found, "previous"))
    assert [row["value"] for row in shares] == [h.shares["previous"].share for h in found.heads]
    with pytest.raises(ConfigError, match="Did you mean 'previous'"):
        charts.heads(found, "previos")


def test_layers(seen, toys):
    found = inspect.lens(*seen, top=2)
    rows = table_of(charts.lens(found))
    for row in rows:
        layer, at = row["layer"], row["row"]
        assert np.float32(row["probability"]) == found.probabilities[layer, at, 0]
        assert row["piece"] == found.pieces[layer][at][0].replace("▁", "_")
    assert len(rows) == len(found.layers) * len(found.rows)
    cells = charts.lens(found).to_dict()["layer"][0]
    # A cell is a line of text high; a constant of another chart once made it 300 pixels.
    assert cells.get("height", charts.lens(found).to_dict().get("height")) == {"step": 24}
    parts = inspect.contributions(*seen)
    added = np.array([row["score"] for row in table_of(charts.scores(parts))], np.float32)
    np.testing.assert_array_equal(added, parts.scores.ravel())
    shares = [row["share"] for row in table_of(charts.sublayers(parts))]
    np.testing.assert_allclose(shares, (parts.sizes / parts.stream_sizes).ravel(), rtol=1e-6)
    subject = toys.encoder()
    with pytest.raises(ModelError, match="no sums"):
        charts.scores(inspect.contributions(subject, inspect.read(subject, "ab")))


def test_tracing_words_and_links(seen):
    traced = inspect.rollout(inspect.attention(*seen, "encoder"))
    data = charts.tracing(traced).data
    drawn = weights_of(data, "layer", "row", "column")
    np.testing.assert_array_equal(drawn, traced.weights.astype(np.float32))
    subject, reading = seen
    aligned = inspect.align_words(subject, [reading] * 3)
    words = inspect.word_attention(subject, [reading])[0]
    np.testing.assert_array_equal(
        weights_of(charts.words(words, aligned.forward).data, "row", "column"),
        aligned.forward.matrix(words),
    )
    linked = rows_of(charts.links(aligned.pairs[0]).data)
    assert {(r["column"], r["row"]) for r in linked if r["weight"]} == set(aligned.pairs[0].links)


def test_curves(tmp_path):
    points = {"greedy": [(8, 30.0), (7, 29.5)], "importance": [(8, 30.0), (7, float("nan"))]}
    chart = charts.curves(points, x="heads left", y="BLEU", title="Pruning")
    assert [(r["name"], r["x"], r["y"]) for r in rows_of(chart.data)] == [
        ("greedy", 8, 30),
        ("greedy", 7, 29.5),
        ("importance", 8, 30),
    ]
    with pytest.raises(DataError, match="no points"):
        charts.curves({}, x="x", y="y")
    lines = [
        {"step": 1, "loss": 5.0},
        {"step": 2, "loss": 4.0},
        {"step": 2, "event": "validation", "loss": 4.5, "bleu": 1.0},
        {"step": 2, "event": "summary", "loss": 0.0},
    ]
    record = "".join(json.dumps(line) + "\n" for line in lines) + '{"step": 3, "lo'
    (tmp_path / "metrics.jsonl").write_text(record, encoding="utf-8")
    rows = rows_of(charts.training(tmp_path).data)
    assert [(r["name"], r["x"], r["y"]) for r in rows] == [
        ("training", 1, 5.0),
        ("training", 2, 4.0),
        ("validation", 2, 4.5),
    ]
    with pytest.raises(DataError, match="no record"):
        charts.training(tmp_path / "none")
    with pytest.raises(DataError, match="Did you mean 'bleu'"):
        charts.training(tmp_path, figure="blue")


def test_charts_can_be_put_side_by_side(seen):
    found = inspect.attention(*seen)
    both = charts.matrix(found) | charts.lens(inspect.lens(*seen)) & charts.matrix(found)
    assert charts.draw(both, "svg").startswith(b"<svg")


# Files


def odd() -> AttentionMap:
    count = len(ODD)
    weights = np.random.default_rng(0).dirichlet(np.ones(count), (1, 1, count))
    return AttentionMap("encoder", (0,), (0,), ODD, ODD, weights.astype(np.float32))


@settings(max_examples=30)
@given(st.lists(st.text(max_size=40), min_size=1, max_size=8))
def test_labels_show_what_they_hold(pieces):
    from heedful.apps.charts.frame import labels

    for label in labels(pieces):
        assert label.isprintable()
        assert label.strip()
        assert len(label) <= 24


def test_a_png_is_one(tmp_path):
    file = tmp_path / "x.png"
    charts.save(charts.matrix(odd()), file)
    content = file.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", content[16:24])
    assert 2 * 24 * len(ODD) < width < 3000
    assert 2 * 24 * len(ODD) < height < 3000
    assert [path.name for path in tmp_path.iterdir()] == ["x.png"]


def test_an_svg_has_a_cell_for_each_weight_and_the_tokens():
    drawing = ElementTree.fromstring(charts.draw(charts.lines(made()), "svg"))
    texts = {text.text for text in drawing.iter("{http://www.w3.org/2000/svg}text")}
    assert {"r0", "r4", "c0", "c3"} <= texts
    drawing = ElementTree.fromstring(charts.draw(charts.matrix(odd()), "svg"))
    cells = [
        path
        for path in drawing.iter("{http://www.w3.org/2000/svg}path")
        if path.get("aria-roledescription") == "rect mark"
    ]
    assert len(cells) == len(ODD) ** 2
    texts = {text.text for text in drawing.iter("{http://www.w3.org/2000/svg}text")}
    assert {"a\\nb", "\\t", "�x", "日本語", "قطة", "␣", "</script><b>", "é" * 23 + "…"} <= texts


class References(html.parser.HTMLParser):
    """What a page would load, and the scripts in it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.found += [v or "" for name, v in attributes if name in ("src", "href", "srcset")]


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("page") / "lines.html"
    charts.save(charts.lines(odd()), file)
    return file


def test_a_page_refers_to_nothing_outside(page):
    content = page.read_text(encoding="utf-8")
    parser = References()
    parser.feed(content)
    assert parser.found == ["data:,"]
    assert parser.tags.count("script") == 3
    assert "b" not in parser.tags  # which a token tries to open
    assert "default-src 'none'" in content


OPACITIES = "lines => lines.map(line => +line.getAttribute('opacity'))"
FAINT = "line => line.getAttribute('opacity') === '0.03'"


def test_a_page_is_drawn_without_a_request(page, browser):
    said, asked = [], []
    with browser.new_page() as tab:
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(page.as_uri())
        tab.wait_for_selector("#chart svg")
        lines = tab.locator("#chart svg line[aria-roledescription='rule mark']")
        whole = lines.evaluate_all(OPACITIES)
        tab.locator("#chart svg text", has_text="日本語").first.hover()
        tab.wait_for_function(f"[...document.querySelectorAll('#chart line')].some({FAINT})")
        pointed = lines.evaluate_all(OPACITIES)
    assert said == []
    assert asked == [page.as_uri()]
    weights = odd().weights[0, 0]
    seen = weights >= 0.02
    np.testing.assert_allclose(whole, weights[seen], atol=1e-6)
    row = np.nonzero(seen)[0]
    here = ODD.index("日本語")
    np.testing.assert_allclose(pointed, np.where(row == here, weights[seen], 0.03), atol=1e-6)


def test_what_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    chart = charts.matrix(made())
    with pytest.raises(ConfigError, match=r"Name a \.html"):
        charts.save(chart, tmp_path / "x.csv")
    with pytest.raises(OSError, match="missing"):
        charts.save(chart, tmp_path / "missing" / "x.svg")
    monkeypatch.setattr(alt, "SCHEMA_VERSION", "v99.1.0")
    with pytest.raises(ConfigError, match="pip install -U vl-convert-python"):
        charts.save(chart, tmp_path / "x.svg")
    assert list(tmp_path.iterdir()) == []


def test_without_altair_it_is_said_what_to_install(monkeypatch):
    for module in [name for name in sys.modules if name.startswith("heedful.apps.charts")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(ConfigError, match=r"Charts need vl-convert-python.*heedful\[studio\]"):
        import heedful.apps.charts  # noqa: F401


def test_bands_can_be_logarithmic_on_both_axes_and_tell_many_names_apart() -> None:
    """Colours come round again after some names; the next round is dashed."""
    series = {
        f"name {i}": [charts.Estimate(2.0**x, y, y, y) for x, y in ((1, 1.0), (9, 10.0 + i))]
        for i in range(len(SERIES) + 1)
    }
    layers = charts.bands(series, x="tokens", y="seconds", log=True, log_y=True).to_dict()["layer"]
    for layer in layers:
        axes = layer["encoding"]
        assert axes["x"]["scale"]["type"] == axes["y"]["scale"]["type"] == "log"
    dashes = layers[1]["encoding"]["strokeDash"]["scale"]["range"]
    assert dashes[0] == dashes[-2] == [1, 0]
    assert dashes[-1] != dashes[0]
    few = dict(list(series.items())[:2])
    assert "strokeDash" not in charts.bands(few, x="x", y="y").to_dict()["layer"][1]["encoding"]
